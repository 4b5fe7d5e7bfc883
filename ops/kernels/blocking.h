// Which operand aims at which cache: all shares in one place, as BLIS's configurations have them,
// with what the rest is for. Bytes, from the sizes that this CPU tells (tensor/cpu_features.h).
#pragma once
#include <cstdint>

#include "quern/tensor/cpu_features.h"

namespace quern::kernels::cache {

inline int64_t l2() { return cache_sizes().l2; }
inline int64_t l3() { return cache_sizes().l3; }

/// Scratch for one row of outputs that an engine takes at most: a problem beyond this is left to
/// another, at last to the reference, which takes none.
inline constexpr int64_t kMostScratch = int64_t{256} << 20;

// --- The first level -----------------------------------------------------------------------------

/// Lines so far apart fall in the same set, of which it has kWays.
inline constexpr int64_t kWay = 4096, kWays = 8;
/// Do pixels so far apart, of several rows, meet in a few sets? Each line of theirs has left when
/// the next vector of channels reads it, or that to which it was fetched ahead.
inline bool collides(int64_t pixel) { return pixel % (kWay / 4) == 0; }

// --- Outputs, of any kernel ----------------------------------------------------------------------

inline constexpr int64_t kLine = 64;
/// An output of so many bytes is hardly in the third-level cache, which other cores share, when it
/// is read, nor was what it overwrites. Convolutions read it, whose products hide where it is from.
inline int64_t read_by_products() { return l3() / 8; }
/// Or what does little else than read, just after it was written, finds none of it there.
inline int64_t read_at_once() { return l3() / 2; }
/// Or of which too little is left there, whoever reads it, to pay for what it evicts.
inline int64_t larger_than_caches() { return l3() / 4 * 3; }
/// Does an output, of rows that are `pitch` bytes, bypass the caches from `least` bytes on?
/// Non-temporal stores write it without a write-allocate, which reads each line before it is
/// overwritten, and without evicting others, but whole lines only.
inline bool bypassed(const void* output, int64_t bytes, int64_t pitch, int64_t least) {
  return bytes >= least && pitch % kLine == 0 && reinterpret_cast<uintptr_t>(output) % kLine == 0;
}

// --- GEMM (gemm/gemm.cpp) ------------------------------------------------------------------------

/// Of a row of A and a column of B in a block of k. A vector tile reads few bytes of A and B a
/// cycle, which L2 gives: a cell's rows of A, packed once for all columns, and two panels of B take
/// half of it, and C is passed over once in 1024 f32 or 2048 bf16. An AMX tile reads a cache line a
/// cycle: its panel of B is to stay in L1, for more rows.
inline int64_t gemm_depth(bool amx) { return amx ? 1024 : 4096; }
inline int64_t gemm_rows(bool amx) { return amx ? 128 : 64; }
/// A whole B that is this large comes from memory for every cell, the blocks of k one by one from
/// L3.
inline constexpr int64_t kLargeB = int64_t{8} << 20;

/// A B of a batch that its thread packs, since it then finds it in L2.
inline constexpr int64_t kSmallB = int64_t{256} << 10;

// --- Forward and dgrad (conv/taps) ---------------------------------------------------------------

/// A block of the source, over which all panels of B pass.
inline int64_t source_block() { return l2() / 2; }
/// It stores so many times as much at most where channels are innermost, which is L2: panels write
/// parts of a pixel's channels one after the other, all of them before the first leave it.
inline constexpr int64_t kStoredBlocks = 2;
/// B of all taps for a panel of outputs, which the block's pixels read again and again.
inline int64_t panel_of_taps() { return l2() / 3; }
/// What is copied of a pixel at a time where groups have few channels, which are a cache line or
/// less: a call of memmove for each group would take longer than what it copies.
inline constexpr int64_t kCopiedGroups = 512;
/// So many panels of outputs read a source where it lies rather than a copy, if rows that are cut
/// at the padding do not take longer than the copy: one, but a mesh brings the copy's source late.
inline int64_t panels_without_copy() { return l3_is_mesh() ? 3 : 1; }
/// Copies of the source of which each serves many cells, all together: beyond this, a cell does not
/// find its own in L2 and had better make one.
inline int64_t shared_sources() { return 2 * l2(); }

// By strips (conv/taps/strips.cpp), whose tiles read 64 bytes of A and of B a step, as AMX's do:
// one of both is to stay in L1.

/// Rows of A that a strip reads, over which all panels pass.
inline constexpr int64_t kStripSource = 32 << 10;
/// B of a cell, which each of its strips reads.
inline int64_t strip_weights() { return l2() / 2; }

// --- Chains of convolutions (ops/detail/chain_strips.cpp) ----------------------------------------

/// What lies between the convolutions of a chain for a strip of rows, beside their weights.
inline int64_t chain_strip() { return l2() / 2; }

// --- The gradient of the weight (conv/wgrad) -----------------------------------------------------

/// Sums of a cell that stay where they are from one of its blocks to the next: half of L2 beside
/// the operands; of a cell that has few blocks a little more than all of it, since they are seldom
/// passed over.
inline int64_t outer_sums(bool many_blocks) { return many_blocks ? l2() / 2 : l2() / 4 * 5; }
/// Both operands of a block: the pixels of the next one are fetched to L2 meanwhile, and sums are
/// there.
inline int64_t outer_block() { return l2() / 8 * 3; }
/// The same where operands are transposed. Tiles of AMX pass over all sums of a cell once in some
/// 256 pixels, and most of what they read comes from L2: sums and operands are to be there together
/// with the pixels of the next block.
inline int64_t transposed_sums(bool many_blocks) { return many_blocks ? l2() / 4 : l2() / 4 * 5; }
inline int64_t transposed_block(bool amx) { return amx ? l2() / 4 : l2() / 2; }
/// Of these, what AMX tiles keep in L1: the rows of A that meet all panels, and if they have
/// several taps, the panel that meets these. From L2 alone a tile would wait for its loads, most
/// where a tap's offset tears cache lines.
inline int64_t transposed_chunk(bool taps) { return (taps ? 36 : 24) << 10; }

// --- Winograd (conv/winograd) --------------------------------------------------------------------

/// V of all points of a block, which all panels of outputs read; U passes by.
inline int64_t winograd_block() { return l2() / 4 * 3; }
/// V and D of all points for the gradient of the weight: each point's are read once and aim at L2,
/// all at L3, for many tiles a block, so that M is seldom read.
inline int64_t winograd_outer_block() { return 2 * l2(); }
/// M of one point.
inline int64_t winograd_sums() { return l2() / 2; }
/// Rows of pixels that are copied at once and transformed while they are near.
inline int64_t winograd_strip() { return l2() / 8; }

// --- Few outputs (conv/kn2row) -------------------------------------------------------------------

/// Panels of the rows of the source that a block's taps read, each a few times, and its Z.
inline int64_t kn2row_block() { return l2() / 4 * 3; }

// --- Depthwise (conv/depthwise) ------------------------------------------------------------------

/// Weights of a panel of channels, or their gradients' sums, in L1 beside the rows that meet them.
inline constexpr int64_t kDepthwiseWeights = 24 << 10;
/// The same where a weight meets all outputs of a block in registers (groups of several channels):
/// from L2, so that pixels, which come from further away, are read and written whole.
inline int64_t grouped_weights() { return l2() / 4; }
/// Rows of a block that are copied, and their sums.
inline int64_t depthwise_block() { return l2() / 2; }
/// A source that has just been written lies in L3 up to here: hardware prefetchers bring its rows
/// in time, and few products are made of each, so that a prefetch would cost more than it saves.
/// (What a backward pass reads of the forward pass comes from memory: it is prefetched beyond L2.)
inline int64_t just_written() { return l3() / 2; }
/// Lines of an output of so many bytes are owned before they are written: a store would wait for
/// memory, or for a mesh.
inline int64_t owned_ahead() { return l3_is_mesh() ? l2() : read_by_products(); }

}  // namespace quern::kernels::cache
