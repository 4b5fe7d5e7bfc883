// gradcheck: an op's backward against central differences in f64.
#pragma once
#include <functional>
#include <string>

#include "quern/tensor/tensor.h"

namespace quern {

struct GradcheckOptions {
  double eps = 1e-6;    ///< step of the central difference
  double atol = 1e-7;   ///< bound on |numeric - analytic|, with
  double rtol = 1e-6;   ///< this times |numeric|
};

/// Compares d(Σ w·f(inputs))/d(inputs), for a fixed random w, with central differences, element by
/// element. Inputs are f64; those that require a gradient are perturbed (and restored). Returns "" if all
/// agree, else a description of the first element that does not.
std::string gradcheck(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
                      const GradcheckOptions& options = {});

}  // namespace quern
