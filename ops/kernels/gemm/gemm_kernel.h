// The contract of a GEMM micro-kernel, the one building block of gemm and conv (a batch-reduce
// GEMM):
//
//     C[m×n] (+)= Σ_i A_i[m×k] · B_i[k×n]
//
//           k                    nr                       n
//        ┌──────┐   lda      ┌────────┐ k/kr rows      ┌──────┐  ldc
//      m │ A_i  │  (rows     │  B_i   │ of nr·kr       │  C   │  (f32, or f64 for f64)
//        └──────┘  pixels)   └────────┘ elements       └──────┘
//
// B is packed in panels: element (p, j) of a panel lies at (p/kr)·nr·kr + j·kr + p%kr, with columns
// n..nr-1 zero. kr is the number of consecutive k that one instruction multiplies and adds (bf16
// pairs: 2).
//
// A kernel may also run on outer products, as the gradient of a convolution's weight has it (k
// counts pixels, channels are innermost), which saves transposes and half of the packing:
//   A by columns, kr of them interleaved like those of B: element (r, p) at
//     (p/kr)·lda + r·kr + p%kr
//   B by rows, where they lie: element (p, j) at p·ldb + j; all nr columns must be readable
//   k any; columns of A up to the next multiple of kr are there and finite
//
// Files compiled with ISA flags include this and <immintrin.h>, and keep all but their
// records to themselves: an inline function compiled there could be the copy that the linker keeps
// for every CPU.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/gemm/strip.h"
#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// Of the widest tile, 4×6VL with vectors of 512 bits.
inline constexpr int kMaxNr = 96;

struct GemmTile {
  /// So many tiles follow each other in A, in C and in their epilogue; 1 unless the kernel takes
  /// those.
  int64_t tiles = 1;
  int64_t m, n;   // 1..mr rows, 1..nr columns; those beyond are neither read (A) nor written (C)
  int64_t k;      // of each product; a multiple of the kernel's k_multiple, at least that
  int64_t batch;  // number of products, at least 1
  const void* const* a;  // batch pointers to A_i[0][0]; row r of it starts r·lda elements on
  int64_t lda;           // by columns: from a group of kr columns to the next
  const void* const* b;  // batch pointers to packed panels, or to B_i[0][0]
  int64_t ldb = 0;       // B by rows only
  /// A cache line and the one behind it, to be prefetched to L2 at each step of 2·kr of k (outer
  /// products: of kr; not null; AMX: of 16), then those prefetch_step bytes on. (With one line a
  /// step they arrive too late.)
  const void* prefetch = nullptr;
  int64_t prefetch_step = 0;
  void* c;  // [m][n], row r starts r·ldc elements on
  int64_t ldc;
  bool accumulate;  // false: C is written without being read (it may hold NaN)
  /// Not null: what becomes of the sums, C not being written. Then B is packed.
  const Epilogue* epilogue = nullptr;
};

struct GemmKernel {
  const char* name;  // gemm_<a>_<b>_<c>_<mr>x<nr>[k<kr>]_<isa>
  Isa isa;
  DType a, b = a, c = a == DType::f64 ? DType::f64 : DType::f32;
  int mr, nr, kr = 1;
  int k_multiple = kr;  // what k must be a multiple of; the caller pads A and B with zeros
  void (*run)(const GemmTile&);
  void (*run_outer)(const GemmTile&) = nullptr;  // outer products; null: not offered
  int narrow_mr = mr;            // rows of a tile of outer products that has up to nr/2 columns
  bool takes_epilogues = false;  // run() takes epilogue and tiles
  void (*run_strip)(const GemmStrip&) = nullptr;  // null: not offered
  // What run() may hold in the thread from enter() to leave(), outside of memory: see KernelUse.
  // Null: nothing.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
  // nr is that of vectors of 128 bits in the record, and named <nr/4>vl; table() gives that of
  // the CPU's vectors.
  bool scalable = false;
};

}  // namespace quern::kernels
