// A graph in f32 or bf16, op by op against f64.
#pragma once
#include <string>

#include "program.h"

namespace quern::soak {

/// What is wrong with the program computed in `dtype`; empty: nothing. Each op, forward and
/// backward, is held to the same op in f64 on the operands and gradients that it was given, so that
/// errors before it don't matter and what is discontinuous falls to the same side. The whole is run
/// again on 3 threads, unobserved: the same bits.
std::string compare(const Program& program, DType dtype, uint64_t seed);

}  // namespace quern::soak
