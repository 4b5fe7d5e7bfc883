// gradcheck: an op's backward against central differences in f64.
#pragma once
#include <functional>
#include <string>

#include "quern/tensor/tensor.h"

namespace quern {

/// How near gradients must be.
struct GradcheckOptions {
  double eps = 1e-6;   ///< step of the central difference
  double atol = 1e-7;  ///< bound on |numeric - analytic|, with
  double rtol = 1e-6;  ///< this times |numeric|
};

/// Compares d(Σ w·f(inputs))/d(inputs), for a fixed random w, with central differences, element by
/// element, for a dense and for a strided gradient of the output. Inputs that require a gradient
/// are f64 leaves, which are perturbed (and restored); f gives the same result each time it is
/// called. Returns "" if all agree, else a description of the first element that does not.
std::string gradcheck(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
                      const GradcheckOptions& options = {});

}  // namespace quern
