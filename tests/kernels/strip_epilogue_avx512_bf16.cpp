#include "kernels/strip_epilogue.h"
#include "quern/ops/kernels/gemm/tiles/strip_epilogue_avx512.h"

namespace quern::test {

kernels::CompleteOutputs* avx512_strip_epilogue(const kernels::Epilogue& epilogue) {
  return kernels::Avx512StripEpilogue::of(epilogue);
}

}  // namespace quern::test
