// Every op of op_cases.h on operands and gradients of any layout and of sizes 0 and 1, forward and
// backward.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "ops/hostile.h"
#include "ops/op_cases.h"
#include "quern/autograd/node.h"
#include "quern/ops/detail/elementwise.h"

namespace quern::test {
namespace {

/// What became of an op: its output and gradients, or an Error.
struct Outcome {
  std::string error;
  Tensor out, dout;
  Tensors gradients;
};

/// Makes dout for an output.
using Dout = std::function<Tensor(const Tensor& out)>;

Outcome attempt(const OpCase& op, const Tensors& operands, const Dout& make_dout) {
  Outcome o;
  Tensors leaves;
  for (const Tensor& t : operands) {
    leaves.push_back(raw::alias(t));
    if (is_floating(t.dtype())) leaves.back().requires_grad_();
  }
  try {
    o.out = op.run(leaves);
    o.dout = make_dout(o.out);
    if (o.out.requires_grad()) o.out.backward(o.dout);
  } catch (const Error& error) {
    o.error = error.what();
  }
  for (const Tensor& leaf : leaves) o.gradients.push_back(leaf.grad());
  return o;
}

Tensor dense_as(const Tensor& t, DType dtype) {
  return raw::clone(raw::contiguous(is_floating(t.dtype()) ? raw::to(t, dtype) : t));
}

/// ‖got - expected‖ and ‖expected‖, a NaN of both being equal.
struct Distance {
  double difference = 0, norm = 0;

  Distance(const Tensor& got, const Tensor& expected) {
    const auto a = got.to_vector<double>(), b = expected.to_vector<double>();
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
      if (a[i] != b[i]) difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    difference = std::sqrt(difference), norm = std::sqrt(norm);
  }
};

/// f32 is held to f64. f64 and bf16 are held to themselves on dense operands.
DType reference_dtype(DType dtype) { return dtype == DType::f32 ? DType::f64 : dtype; }

/// f32 may be off by 2e-6 as in golden_test.cpp, f64 by as much in its own unit, bf16 by two
/// roundings, of 2^-9 each. Of long sums, which have at most `terms`: where all terms are one
/// element, their roundings align.
double relative_bound(DType dtype, int64_t terms = 0) {
  const double f32 = std::max(2e-6, 0x1p-24 * static_cast<double>(terms));
  return dtype == DType::f32 ? f32 : dtype == DType::f64 ? f32 * 0x1p-29 : 0x1p-8 + f32;
}

/// Every element off by at most `by` of its size, this way or that.
Tensor shaken(const Tensor& t, double by) {
  if (!t.defined() || !is_floating(t.dtype())) return t;
  auto values = t.to_vector<double>();
  const auto ways = random({t.numel()}, 98).to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) values[i] *= 1 + by * ways[i];
  return raw::to(from_vector(values, t.shape()), t.dtype());
}

/// An op on dense operands, and how far its results may be off: by the bound of the size of all of
/// them, and, where terms cancel, as far as they move when operands and dout are off by as much.
/// That they move in proportion tells cancellation from a place where the op takes another of two
/// equals: there nothing is allowed.
class Reference {
 public:
  Reference(const OpCase& op, Tensors operands, Tensor dout, double bound)
      : op_(op), operands_(std::move(operands)), dout_(std::move(dout)), bound_(bound) {
    exact_ = attempt(op_, operands_, dout_maker(dout_));
    if (!exact_.error.empty()) return;
    size_ = Distance(exact_.out, exact_.out).norm;
    for (const Tensor& t : exact_.gradients)
      if (t.defined()) size_ = std::hypot(size_, Distance(t, t).norm);
  }
  const Outcome& exact() const { return exact_; }
  /// What is wrong with `got`, or nothing; `of` gives the same of an outcome of the reference.
  std::string difference(const std::string& name, const Tensor& got,
                         const std::function<Tensor(const Outcome&)>& of) {
    const Tensor expected = of(exact_);
    if (got.defined() != expected.defined()) return fmt::format("{}: defined or not; ", name);
    if (!got.defined()) return {};
    if (got.shape() != expected.shape())
      return fmt::format("{}: shape {} for {}; ", name, got.shape(), expected.shape());
    const Distance d(got, expected);
    if (d.difference <= bound_ * size_) return {};
    const auto moves = [&](double by) {
      return Distance(of(shaken_outcome(by)), expected).difference;
    };
    const double whole = moves(bound_), eighth = moves(bound_ / 8);
    const double moved = eighth <= whole / 4 ? whole : 0;
    if (d.difference <= bound_ * size_ + moved) return {};
    return fmt::format("{}: off by {:.2e} of {:.2e}, which moves by {:.2e}; ", name, d.difference,
                       d.norm, moved);
  }

 private:
  static Dout dout_maker(const Tensor& dout) {
    return [dout](const Tensor& out) { return dout.defined() ? dout : ones_like(out); };
  }
  Outcome shaken_outcome(double by) const {
    Tensors operands;
    for (const Tensor& t : operands_) operands.push_back(shaken(t, by));
    return attempt(op_, operands, dout_maker(shaken(dout_, by)));
  }

  const OpCase& op_;
  Tensors operands_;
  Tensor dout_;
  double bound_;
  Outcome exact_;
  double size_ = 0;
};

bool shares(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.numel() > 0 && b.numel() > 0 && a.storage() == b.storage();
}

/// Runs an op on the operands as they are and on dense copies; what is wrong, or nothing.
std::string compare(const OpCase& op, const Tensors& operands, DType dtype,
                    const Layout& dout_layout, bool large = false) {
  std::vector<std::string> before;
  std::vector<uint64_t> versions;
  for (const Tensor& t : operands) before.push_back(memory_of(t)), versions.push_back(t.version());
  std::string dout_before;
  const Outcome got = attempt(op, operands, [&](const Tensor& out) {
    Tensor dout = dout_layout.make(random(out.shape(), 99, out.dtype()));
    if (!dout.defined()) dout = random(out.shape(), 99, out.dtype());
    dout_before = memory_of(dout);
    return dout;
  });
  Tensors dense;
  for (const Tensor& t : operands) dense.push_back(dense_as(t, reference_dtype(dtype)));
  const Tensor dout = got.dout.defined() ? dense_as(got.dout, reference_dtype(dtype)) : Tensor();
  int64_t terms = got.dout.defined() ? got.dout.numel() : 0;
  for (const Tensor& t : operands) terms = std::max(terms, t.numel());
  Reference reference(op, dense, dout, relative_bound(dtype, large ? terms : 0));

  std::string wrong;
  for (size_t i = 0; i < operands.size(); ++i)
    if (memory_of(operands[i]) != before[i] || operands[i].version() != versions[i])
      wrong += fmt::format("operand {} was written to; ", i);
  if (got.error.empty() != reference.exact().error.empty())
    return wrong + fmt::format("error '{}' for '{}'", got.error, reference.exact().error);
  if (!got.error.empty()) return wrong;
  if (memory_of(got.dout) != dout_before) wrong += "dout was written to; ";
  wrong += reference.difference("output", got.out, [](const Outcome& o) { return o.out; });
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& gradient = got.gradients[i];
    wrong += reference.difference(fmt::format("gradient {}", i), gradient,
                                  [i](const Outcome& o) { return o.gradients[i]; });
    if (!op.view && shares(got.out, operands[i])) wrong += fmt::format("output is operand {}; ", i);
    bool alias = shares(gradient, got.out) || shares(gradient, got.dout);
    for (size_t j = 0; j < operands.size(); ++j)
      alias |= shares(gradient, operands[j]) || (i != j && shares(gradient, got.gradients[j]));
    if (alias) wrong += fmt::format("gradient {} shares memory; ", i);
  }
  return wrong;
}

/// The operands in a layout, all of them or only one; none where it is for none of them.
std::optional<Tensors> laid_out(const Tensors& values, const Layout& layout,
                                std::optional<size_t> only) {
  Tensors operands;
  bool any = false;
  for (size_t i = 0; i < values.size(); ++i) {
    Tensor view = only.value_or(i) == i ? layout.make(values[i]) : Tensor();
    any |= view.defined();
    operands.push_back(view.defined() ? view : raw::clone(values[i]));
  }
  return any ? std::optional(operands) : std::nullopt;
}

std::string reported(DType dtype, const std::string& what, const std::string& how) {
  return how.empty() ? std::string() : fmt::format("\n  {}, {}: {}", dtype, what, how);
}

/// All layouts of the operands, together and one by one, and of dout.
std::string walk_all(const OpCase& op, const Tensors& values, DType dtype) {
  std::string wrong;
  const Layout& plain = layouts().front();
  for (const Layout& layout : layouts()) {
    wrong += reported(dtype, "dout " + layout.name,
                      compare(op, *laid_out(values, plain, {}), dtype, layout));
    if (const auto all = laid_out(values, layout, {})) {
      wrong += reported(dtype, layout.name, compare(op, *all, dtype, plain));
      wrong += reported(dtype, layout.name + ", dout, too", compare(op, *all, dtype, layout));
    }
    for (size_t i = 0; values.size() > 1 && i < values.size(); ++i)
      if (const auto one = laid_out(values, layout, i))
        wrong += reported(dtype, fmt::format("operand {} {}", i, layout.name),
                          compare(op, *one, dtype, plain));
  }
  return wrong;
}

/// Each layout of the operands and dout together.
std::string walk_together(const OpCase& op, const Tensors& values, DType dtype, bool large) {
  std::string wrong;
  for (const Layout& layout : layouts())
    if (const auto all = laid_out(values, layout, {}))
      wrong += reported(dtype, layout.name, compare(op, *all, dtype, layout, large));
  return wrong;
}

Tensors inputs_as(const std::string& name, DType dtype) {
  Tensors values;
  for (const Tensor& t : golden_inputs(name)) values.push_back(dense_as(t, dtype));
  return values;
}

}  // namespace

TEST_CASE("ops take operands and gradients of any layout") {
  for (const auto& [name, op] : op_cases())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const Tensors values = inputs_as(name, dtype);
      const std::string wrong = !kEmulatedCpu         ? walk_all(op, values, dtype)
                                : dtype != DType::f64 ? walk_together(op, values, dtype, false)
                                                      : "";
      CHECK_MESSAGE(wrong.empty(), name, wrong);
    }
}

namespace {

/// A dimension of an operand, and some that change their size together.
struct Place {
  size_t operand;
  int d;
  auto operator<=>(const Place&) const = default;
};
using Places = std::vector<Place>;

/// Each dimension alone, with one of the same size of another operand, and with all of its size.
std::vector<Places> groups(const Tensors& values) {
  Places all;
  for (size_t i = 0; i < values.size(); ++i)
    for (int d = 0; d < values[i].dim(); ++d) all.push_back({i, d});
  std::vector<Places> found;
  const auto add = [&](const Places& group) {
    if (std::ranges::find(found, group) == found.end()) found.push_back(group);
  };
  for (const Place& p : all) {
    add({p});
    Places alike;
    for (const Place& q : all) {
      if (values[p.operand].size(p.d) != values[q.operand].size(q.d)) continue;
      alike.push_back(q);
      if (p.operand < q.operand) add({p, q});
    }
    add(alike);
  }
  return found;
}

bool of_images(const Tensors& values) {
  return std::ranges::any_of(values, [](const Tensor& t) { return t.dim() > 3; });
}

/// These, and the unions of two of them. Images are large enough in one of their dimensions.
std::vector<Places> pairs_of(const std::vector<Places>& groups, const Tensors& values) {
  if (of_images(values)) return groups;
  std::vector<Places> found = groups;
  for (size_t a = 0; a < groups.size(); ++a)
    for (size_t b = a + 1; b < groups.size(); ++b) {
      Places both = groups[a];
      both.insert(both.end(), groups[b].begin(), groups[b].end());
      std::ranges::sort(both);
      both.erase(std::unique(both.begin(), both.end()), both.end());
      if (std::ranges::find(found, both) == found.end()) found.push_back(both);
    }
  return found;
}

/// The first `size` along these dimensions.
Tensors cut(Tensors values, const Places& places, int64_t size) {
  for (const auto& [i, d] : places) values[i] = raw::slice(values[i], d, 0, size);
  return values;
}

/// The values again and again along these dimensions, scaled by 0.5 to 1; none where they are too
/// many.
std::optional<Tensors> grown(Tensors values, const Places& places) {
  constexpr int64_t kMost = 1 << 16;
  const int64_t times = of_images(values) ? 12 : 32;
  for (const auto& [i, d] : places) {
    Tensor& t = values[i];
    if (t.numel() * times > kMost) return std::nullopt;
    Shape shape = t.shape();
    shape.insert(d, times);
    const Tensor repeats = raw::expand(raw::unsqueeze(t, d), shape);
    shape = t.shape();
    shape[d] *= times;
    t = raw::reshape(repeats, shape);
    if (!is_floating(t.dtype())) continue;
    const Tensor factors = random(shape, 97, DType::f64, MemoryFormat::contiguous, 0.5, 1);
    t = raw::to(raw::binary("test", kernels::Binary::mul, t, factors), t.dtype());
  }
  return values;
}

std::string named(const Places& places) {
  std::string text;
  for (const auto& [i, d] : places) text += fmt::format(" {} of operand {}", d, i);
  return text;
}

}  // namespace

TEST_CASE("ops take operands of sizes 0 and 1, or refuse them") {
  Sample sample;
  for (const auto& [name, op] : op_cases()) {
    const Tensors values = inputs_as(name, DType::f32);
    std::string wrong;
    for (const Places& places : groups(values))
      for (const int64_t size : {0, 1}) {
        if (!sample.takes_next()) continue;
        const std::string how = walk_together(op, cut(values, places, size), DType::f32, false);
        if (!how.empty()) wrong += fmt::format("\n{} cut to {}:{}", named(places), size, how);
      }
    CHECK_MESSAGE(wrong.empty(), name, wrong);
  }
}

// What kernels do in whole tiles and vectors, the operands of the table are too small for.
TEST_CASE("ops take operands of any layout that are many tiles long") {
  Sample sample;
  for (const auto& [name, op] : op_cases())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensors values = inputs_as(name, dtype);
      std::string wrong;
      for (const Places& places : pairs_of(groups(values), values)) {
        if (!sample.takes_next()) continue;
        const auto large = grown(values, places);
        if (!large ||
            !attempt(op, *large, [](const Tensor& out) { return ones_like(out); }).error.empty())
          continue;
        const std::string how = walk_together(op, *large, dtype, true);
        if (!how.empty()) wrong += fmt::format("\n{} grown:{}", named(places), how);
      }
      CHECK_MESSAGE(wrong.empty(), name, wrong);
    }
}

}  // namespace quern::test
