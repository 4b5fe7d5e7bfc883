// f32 as a sum of bf16, for kernels of bf16 to multiply.
//
//   one term   x ≈ hi = bf16(x):                   a·b ≈ hi·hi
//   two        x ≈ hi + lo, lo = bf16(x - hi):     a·b ≈ hi·hi + hi·lo + lo·hi
//
// three products of the batch-reduce contract. `bf16_terms` is their number; 0 are operands as they
// are.
#pragma once

namespace quern::kernels {

/// What a product multiplies: terms of A and of B. The first entry serves one term.
struct TermProduct {
  int a, b;
};
inline constexpr TermProduct kTermProducts[] = {{0, 0}, {0, 1}, {1, 0}};

/// Packed copies that an operand has.
constexpr int term_copies(int bf16_terms) { return bf16_terms == 0 ? 1 : bf16_terms; }
constexpr int term_products(int bf16_terms) { return bf16_terms == 2 ? 3 : 1; }

}  // namespace quern::kernels
