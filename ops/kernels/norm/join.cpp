#include "quern/ops/kernels/norm/join.h"

#include "quern/ops/kernels/norm/channel_blocks.h"

namespace quern::kernels {
namespace {

ChannelLayout layout(const JoinKernel& kernel, const BatchNormSize& size) {
  return {size, true, kernel.dtype};
}

/// What a block sees of a side.
JoinSide part_of(const JoinSide& side, int64_t offset, int64_t parameters) {
  return {.v = at(side.v, offset),
          .scale = at(side.scale, parameters),
          .shift = at(side.shift, parameters),
          .mean = at(side.mean, parameters),
          .a = at(side.a, parameters),
          .b = at(side.b, parameters),
          .c = at(side.c, parameters),
          .dv = at(side.dv, offset)};
}

}  // namespace

void join_forward(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                  const JoinSide& shortcut, void* out) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  map_blocks(layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.forward(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                   at(out, offset));
  });
}

void join_reduce(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                 const JoinSide& shortcut, const void* dout, double* sum_dz, double* sum_branch,
                 double* sum_shortcut) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  const auto reduce = [&](const BatchNormBlock& block, int64_t offset, int64_t c,
                          const auto& sums) {
    kernel.reduce(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                  at(dout, offset), sums.data());
  };
  constexpr BlockLimits rows{.elements = 1 << 16, .columns = kJoinChannels};
  const ChannelLayout x = layout(kernel, size);
  if (shortcut.mean)
    reduce_blocks<3>(x, rows, {sum_dz, sum_branch, sum_shortcut}, reduce, AddSums{});
  else reduce_blocks<2>(x, rows, {sum_dz, sum_branch}, reduce, AddSums{});
}

void join_apply(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                const JoinSide& shortcut, const void* dout) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  map_blocks(layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.apply(block, part_of(branch, offset, c * bytes), part_of(shortcut, offset, c * bytes),
                 at(dout, offset));
  });
}

}  // namespace quern::kernels
