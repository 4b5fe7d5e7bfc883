#include "quern/ops/kernels/norm/join.h"

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/norm/channel_blocks.h"

namespace quern::kernels {
namespace {

ChannelLayout layout(const JoinKernel& kernel, const BatchNormSize& size, bool by_image = false) {
  return {size, true, kernel.dtype, by_image};
}

/// Of blocks whose channels are summed.
constexpr BlockLimits kSummed{.elements = 1 << 16, .columns = kJoinChannels};

bool bypasses_caches(const JoinKernel& kernel, const BatchNormSize& size,
                     std::initializer_list<const void*> outputs) {
  const int64_t row = size.channels * itemsize(kernel.dtype);
  return std::ranges::all_of(outputs, [&](const void* p) {
    return cache::bypassed(p, row * size.images * size.pixels, row, cache::read_by_products());
  });
}

/// What a block sees of a side.
JoinSide part_of(const JoinSide& side, int64_t offset, int64_t parameters) {
  return {.v = at(side.v, offset),
          .map = {at(side.map.center, parameters), at(side.map.scale, parameters),
                  at(side.map.shift, parameters), side.map.activation},
          .a = at(side.a, parameters),
          .b = at(side.b, parameters),
          .c = at(side.c, parameters),
          .dv = at(side.dv, offset)};
}

/// The mask of the block at `offset`, from channel c on.
template <class Word>
Word* part_of(Word* mask, const JoinKernel& kernel, const BatchNormSize& size, int64_t offset,
              int64_t c) {
  const int64_t row = offset / itemsize(kernel.dtype) / size.channels;
  return mask ? mask + row * mask_words(size.channels) + c / 16 : nullptr;
}

JoinGradient part_of(const JoinGradient& gradient, const JoinKernel& kernel,
                     const BatchNormSize& size, int64_t offset, int64_t c) {
  const int64_t image = offset / itemsize(kernel.dtype) / (size.pixels * size.channels);
  const int64_t parameters = (image * size.channels + c) * parameter_bytes(kernel.dtype);
  return {.dout = at(gradient.dout, offset),
          .mask = part_of(gradient.mask, kernel, size, offset, c),
          .scale = at(gradient.scale, parameters),
          .shift = at(gradient.shift, parameters)};
}

}  // namespace

void join_forward(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                  const JoinSide& shortcut, void* out, MaskWord* mask) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  const bool streams = bypasses_caches(kernel, size, {out});
  map_blocks(layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.forward(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                   at(out, offset), part_of(mask, kernel, size, offset, c), nullptr, streams);
  });
}

void join_forward_sums(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                       void* out, double* sums) {
  const int64_t bytes = parameter_bytes(kernel.dtype), channels = size.channels;
  const bool streams = bypasses_caches(kernel, size, {out});
  const Grid grid(layout(kernel, size, true), kSummed.elements, kMaxRows, kSummed.columns);
  const Workspace partial(grid.chunks * channels * static_cast<int64_t>(sizeof(double)));
  parallel_for(grid.chunks * grid.blocks, [&](int64_t cell) {
    const int64_t chunk = cell / grid.blocks, block = cell % grid.blocks;
    const int64_t c = grid.channel(block), offset = grid.offset(chunk, block);
    kernel.forward(grid.block(chunk, block), part_of(branch, offset, c * bytes), {},
                   at(out, offset), nullptr, partial.as<double>() + chunk * channels + c, streams);
  });
  parallel_for(size.images, [&](int64_t image) {
    double* const sum = sums + image * channels;
    std::fill_n(sum, channels, 0);
    for (int64_t i = 0; i < grid.per_image(); ++i) {
      const double* part = partial.as<double>() + (image * grid.per_image() + i) * channels;
      std::transform(part, part + channels, sum, sum, std::plus());
    }
  });
}

void join_reduce(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                 const JoinSide& shortcut, const JoinGradient& gradient, double* sum_dz,
                 double* sum_branch, double* sum_shortcut) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  const auto reduce = [&](const BatchNormBlock& block, int64_t offset, int64_t c,
                          const auto& sums) {
    kernel.reduce(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                  part_of(gradient, kernel, size, offset, c), sums.data());
  };
  const ChannelLayout x = layout(kernel, size, gradient.scale != nullptr);
  if (shortcut.map.center)
    reduce_blocks<3>(x, kSummed, {sum_dz, sum_branch, sum_shortcut}, reduce, AddSums{});
  else reduce_blocks<2>(x, kSummed, {sum_dz, sum_branch}, reduce, AddSums{});
}

void join_apply(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                const JoinSide& shortcut, const JoinGradient& gradient) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  const bool streams = bypasses_caches(kernel, size, {branch.dv, shortcut.dv});
  map_blocks(layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.apply(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                 part_of(gradient, kernel, size, offset, c), streams);
  });
}

}  // namespace quern::kernels
