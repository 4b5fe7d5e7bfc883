// A convolution by 1×1 filters, channels last: a product of matrices, pixels by filters. Before a
// block of pixels is multiplied its prologue may change them, and when its product is stored its
// epilogue may read it: both while they are in the core's own cache.
#pragma once
#include "pixels.h"
#include "quern/ops/kernels/gemm/gemm.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

namespace quern::lessons::step {

// What a prologue and an epilogue may be: rows of x as they are multiplied, perhaps from `room`;
// and what happens beside.
inline constexpr auto as_it_is = [](const Block&, Rows rows, float*) { return rows; };
inline constexpr auto nothing_more = [](const Block&, Rows) {};

/// Room for a block of so many channels.
inline Workspace room_for(int64_t channels) {
  return Workspace(Block::kPixels * channels * int64_t{sizeof(float)});
}

/// w [k, n], of any strides, as the library's product reads it.
class Packed {
 public:
  explicit Packed(const Tensor& w)
      : k(w.size(0)),
        n(w.size(1)),
        b_{w.data<float>(), w.strides()[0], w.strides()[1]},
        panels_(kernels::packed_b_bytes(kernel_, k, n)) {
    kernels::pack_gemm_b(kernel_, b_, k, n, panels_.as<float>());
  }
  /// y [count, n] = x·w
  void multiply(Rows x, float* y) const {
    kernels::gemm(kernel_, {.m = x.count,
                            .n = n,
                            .k = k,
                            .a = {x.v, k, 1},
                            .b = b_,
                            .packed_b = panels_.as<float>(),
                            .c = y,
                            .c_dtype = DType::f32,
                            .c_row_stride = n});
  }
  const int64_t k, n;

 private:
  const kernels::GemmKernel& kernel_ = kernels::select_gemm_kernel(DType::f32);
  const kernels::GemmOperand b_;
  const Workspace panels_;
};

/// x·w, for w [k, n]: block by block prologue, product, epilogue.
template <class Prologue, class Epilogue>
Tensor product(const Tensor& x, const Tensor& w, Prologue prologue, Epilogue epilogue) {
  const Packed packed(w);
  check(x.size(1) == packed.k, "product", "x: expected {} channels, got {}", packed.k, x.size(1));
  const Tensor y = empty({x.size(0), packed.n});
  const auto from = read(x);
  const auto to = write(y);
  // [blocks]
  each_block(x, [&](const Block& block) {
    const Workspace room = room_for(packed.k);
    const Rows rows = prologue(block, from(block), room.as<float>());
    packed.multiply(rows, to(block));
    epilogue(block, Rows{to(block), rows.count, packed.n});
  });
  // [end]
  return y;
}

/// y of x and filters w [out, in].
template <class Prologue, class Epilogue>
Tensor convolve(const Tensor& x, const Tensor& w, Prologue prologue, Epilogue epilogue) {
  return product(x, raw::transpose(w, 0, 1), prologue, epilogue);
}
/// dx of dy.
template <class Epilogue>
Tensor input_gradient(const Tensor& dy, const Tensor& w, Epilogue epilogue) {
  return product(dy, w, as_it_is, epilogue);
}

/// dw = dyᵀ·x: parts of the blocks are summed up, on some thread each, then the parts in one order.
template <class Prologue>
Tensor weight_gradient(const Tensor& x, const Tensor& dy, Prologue prologue) {
  constexpr int64_t kParts = 16;
  const int64_t in = x.size(1), out = dy.size(1), blocks = block_count(x);
  const Tensor parts = zeros({kParts, out, in});
  const auto from = read(x), gradients = read(dy);
  parallel_for(kParts, [&](int64_t part) {
    const Workspace room = room_for(in);
    for (int64_t i = blocks * part / kParts; i < blocks * (part + 1) / kParts; ++i) {
      const Block block(x, i);
      const Rows rows = prologue(block, from(block), room.as<float>());
      kernels::gemm(kernels::select_gemm_kernel(DType::f32),
                    {.m = out,
                     .n = in,
                     .k = rows.count,
                     .a = {gradients(block).v, 1, out},
                     .b = {rows.v, in, 1},
                     .c = parts.out<float>() + part * out * in,
                     .c_dtype = DType::f32,
                     .c_row_stride = in,
                     .accumulate = true});
    }
  });
  return sum(parts, {0});
}

}  // namespace quern::lessons::step
