// Sums of gradients that are expanded, permuted or sliced: as of copies that are dense.
#include "quern/autograd/accumulate.h"

#include "gradcheck_helper.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("what is expanded is added as if it were not") {
  const Shape shape{2, 19, 20, 17};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      Tensors terms;
      for (const Shape& from : {Shape{2, 19, 1, 1}, Shape{1, 19, 20, 1}, Shape{2, 1, 20, 17},
                                Shape{1, 1, 1, 17}, Shape{2, 1, 1, 1}, Shape{}})
        for (const auto of_term : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
          const Tensor t = random(from, 1, dtype);
          terms.push_back(raw::expand(t.dim() == 4 ? raw::contiguous(t, of_term) : t, shape));
        }
      terms.push_back(raw::transpose(random({2, 19, 17, 20}, 2, dtype), 2, 3));
      terms.push_back(raw::slice(random({2, 19, 20, 31}, 3, dtype), 3, 5, 22));
      terms.push_back(raw::slice(random({2, 23, 20, 17}, 4, dtype), 1, 2, 21));
      for (const Tensor& term : terms) {
        const Tensor sum = random(shape, 5, dtype, format), expected = raw::clone(sum);
        detail::add_(sum, term);
        detail::add_(expected, raw::contiguous(term, format));
        CAPTURE(term.strides());
        CHECK(same_bits(sum, expected));
      }
    }
}
