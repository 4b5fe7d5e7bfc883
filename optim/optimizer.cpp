#include "quern/optim/optimizer.h"

#include <unordered_map>
#include <unordered_set>

#include "quern/ops/detail/row_groups.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/idle_rows.h"
#include "quern/optim/detail/update_pass.h"
#include "quern/tensor/raw.h"

namespace quern::optim {

Optimizer::Optimizer(std::string_view name, std::vector<std::string_view> state_names,
                     const std::vector<Tensors>& groups)
    : name_(name), state_names_(std::move(state_names)), num_groups_(groups.size()) {
  std::unordered_set<const void*> seen;
  std::unordered_multimap<const void*, size_t> by_storage;  // of the slots so far
  for (size_t group = 0; group < groups.size(); ++group) {
    check(!groups[group].empty(), name_, "parameters: expected at least one in group {}, got none",
          group);
    for (const Tensor& param : groups[group]) {
      const size_t i = slots_.size();
      check(param.defined() && is_floating(param.dtype()), name_,
            "parameters[{}]: expected a floating tensor, got {}", i, param);
      check(param.is_leaf(), name_, "parameters[{}]: expected a leaf, got the output of an op, {}",
            i, param);
      check(seen.insert(param.identity().lock().get()).second, name_,
            "parameters[{}]: expected each parameter once, got {} again", i, param);
      raw::check_writable(name_, param, fmt::format("parameters[{}]", i));
      for (auto [same, end] = by_storage.equal_range(param.storage().get()); same != end; ++same)
        check(!raw::overlap(param, slots_[same->second].param), name_,
              "parameters[{}]: expected memory of its own, got {} that shares elements with "
              "parameters[{}]",
              i, param, same->second);
      by_storage.emplace(param.storage().get(), i);
      slots_.push_back({.param = param, .group = group, .index = i});
    }
  }
  check(!slots_.empty(), name_, "parameters: expected at least one, got none");
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.param.set_grad({});
}

void Optimizer::set_lr(double lr) {
  for (size_t group = 0; group < num_groups(); ++group) set_lr(lr, group);
}

void Optimizer::check_group(size_t group) const {
  check(group < num_groups_, name_, "group: expected less than {}, got {}", num_groups_, group);
}

void Optimizer::check_rate(double lr) const { check_not_negative(name_, "lr", lr); }

void Optimizer::make_state(size_t group, const Initial& initial) {
  for (Slot& slot : slots_) {
    const Tensor& param = slot.param;
    if (slot.group != group || !param.requires_grad()) continue;
    slot.initial = initial;
    if (param.storage()->owner()) continue;  // see use_state()
    for (size_t s = 0; s < state_names_.size(); ++s)
      slot.state[s] = full(param.shape(), initial[s], state_dtype(param.dtype()), param.format());
  }
}

void Optimizer::make_states() {
  for (size_t group = 0; group < num_groups_; ++group) make_state(group);
}

void Optimizer::make_idle(
    size_t group, const std::function<std::shared_ptr<IdleRows>(const Tensor& param)>& make) {
  for (Slot& slot : slots_)
    if (slot.group == group && slot.param.requires_grad() && slot.param.dim() > 0)
      slot.idle = make(slot.param);
}

void Optimizer::set_stochastic_rounding(size_t group, bool value) {
  for (Slot& slot : slots_)
    if (slot.group == group) slot.stochastic_rounding = value;
}

void Optimizer::catch_up() {
  for (Slot& slot : slots_)
    if (slot.idle) slot.idle->catch_up(slot.param, slot.state, {}, rounding_of(slot, true));
}

void Optimizer::catch_up(const Tensor& param, const Tensor& indices) {
  Slot& slot = slots_[slot_of("catch_up", param)];
  check(param.dim() > 0, name_, "catch_up: expected a parameter with rows, got {}", param);
  const Tensor dense = detail::check_indices(name_, indices, param.size(0));
  if (slot.idle)
    slot.idle->catch_up(slot.param, slot.state, detail::group_rows(dense, param.size(0)).rows,
                        rounding_of(slot, true));
}

size_t Optimizer::slot_of(std::string_view call, const Tensor& param) const {
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].param.is_same(param)) return i;
  fail(name_,
       fmt::format("{}: expected a parameter of this optimizer, got {}", call, param.describe()));
}

int64_t Optimizer::steps(const Tensor& param) const {
  return slots_[slot_of("steps", param)].steps;
}

void Optimizer::use_state(const Tensor& param, const Tensors& state, int64_t steps) {
  Slot& slot = slots_[slot_of("use_state", param)];
  check(state.size() == state_names_.size(), name_, "use_state: expected {} tensors, got {}",
        state_names_.size(), state.size());
  check(steps >= 0, name_, "use_state: expected at least 0 steps, got {}", steps);
  const DType dtype = state_dtype(param.dtype());
  for (size_t s = 0; s < state.size(); ++s)
    check(state[s].defined() && state[s].dtype() == dtype && state[s].shape() == param.shape() &&
              state[s].is_dense_as(param.format()),
          name_, "use_state: expected {} as a dense {} {}, got {}", state_names_[s], dtype,
          param.shape(), state[s]);
  for (size_t s = 0; s < state.size(); ++s) {
    slot.state[s] = state[s];
    if (steps == 0 && slot.initial[s] != 0) raw::fill_(state[s], slot.initial[s]);
  }
  slot.steps = steps;
  if (slot.idle) slot.idle->restart();
}

std::vector<Optimizer::Slot*> Optimizer::slots_to_update() {
  std::vector<Slot*> slots;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Tensor &param = slots_[i].param, grad = param.grad();
    if (!grad.defined()) continue;
    check(is_floating(grad.dtype()) && grad.shape() == param.shape(), name_,
          "gradient of parameters[{}]: expected floating {}, got {}", i, param.shape(), grad);
    slots.push_back(&slots_[i]);
  }
  for (Slot* slot : slots) {
    if (!slot->idle) continue;
    const Tensor grad = slot->param.grad();
    slot->idle->reserve();
    slot->idle->catch_up(slot->param, slot->state, grad.is_sparse() ? grad.rows() : Tensor(),
                         rounding_of(*slot, true));
  }
  return slots;
}

TensorDict Optimizer::state_dict() const {
  TensorDict dict;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const int64_t behind = slot.idle ? slot.idle->behind() : 0;
    check(
        behind == 0, name_,
        "state_dict: expected all rows of parameters[{}] as after the last step, got {} that have "
        "been idle; catch_up() brings them",
        i, behind);
    if (slot.steps == 0 || !slot.state[0].defined()) continue;
    dict.insert(fmt::format("{}.step", i), from_vector<int64_t>({slot.steps}, {}));
    for (size_t s = 0; s < state_names_.size(); ++s)
      dict.insert(fmt::format("{}.{}", i, state_names_[s]), raw::clone(slot.state[s]));
  }
  return dict;
}

void Optimizer::load_state_dict(const TensorDict& dict) {
  std::vector<Slot> loaded;
  std::unordered_set<std::string> known;
  const auto take = [&](const std::string& name, DType dtype, const Shape& shape) {
    const Tensor* t = dict.find(name);
    check(t != nullptr, name_, "state \"{}\": expected {} {}, got none", name, dtype, shape);
    const bool widens =
        is_floating(dtype) && is_floating(t->dtype()) && promote(t->dtype(), dtype) == dtype;
    check((t->dtype() == dtype || widens) && t->shape() == shape, name_,
          "state \"{}\": expected {} {}, got {}", name, dtype, shape, *t);
    known.insert(name);
    return t->dtype() == dtype ? raw::clone(*t) : raw::to(*t, dtype);
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot slot = slots_[i];
    slot.steps = 0;
    for (Tensor& s : slot.state) s = {};
    if (const auto step = fmt::format("{}.step", i); dict.contains(step)) {
      slot.steps = take(step, DType::i64, {}).item<int64_t>();
      check(slot.steps > 0, name_, "state \"{}\": expected a positive number, got {}", step,
            slot.steps);
      for (size_t s = 0; s < state_names_.size(); ++s)
        slot.state[s] = take(fmt::format("{}.{}", i, state_names_[s]),
                             state_dtype(slot.param.dtype()), slot.param.shape());
    }
    loaded.push_back(std::move(slot));
  }
  for (const auto& [name, tensor] : dict)
    check(known.contains(name), name_,
          "state: expected that of {} parameters with a step each, got \"{}\"", slots_.size(),
          name);
  for (size_t i = 0; i < slots_.size(); ++i)  // a RowTable's state stays there
    for (size_t s = 0; s < state_names_.size(); ++s) {
      const Tensor& there = slots_[i].state[s];
      Tensor& now = loaded[i].state[s];
      if (!there.defined() || !there.storage()->owner()) continue;
      if (now.defined()) raw::copy_(there, now);
      else raw::fill_(there, slots_[i].initial[s]);
      now = there;
    }
  slots_ = std::move(loaded);
  for (Slot& slot : slots_)
    if (slot.idle) slot.idle->restart();
}

}  // namespace quern::optim
