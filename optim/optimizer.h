// What optimizers share: parameters in groups, each group with its own options; gradients to
// forget; state to save. A parameter is a leaf tensor; one that has no gradient is left alone by
// step(), state included.
//
//   optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// Where a gradient is row-sparse (embedding(..., {.sparse = true})), step() is by rows, and lazy:
// of the rows that it does not have, neither the parameter nor the state is read or written, as in
// torch.optim.SparseAdam. t in a formula is the number of the parameter's steps, not of the row's;
// a row that the first step does not have starts from the state that there was before it. The dense
// optimizer would go on with idle rows: decay shrinks them, momentum moves them. Options that have
// `.idle = Idle::catch_up` (SGD, Adam, AdamW) do that later: step() first brings the rows that it
// touches to where the dense optimizer's are, to rounding.
// So that the forward reads such rows, too:
//
//   optim::AdamW optimizer(words.parameters(), {.lr = 1e-3, .idle = Idle::catch_up});
//   optimizer.catch_up(words.weight, indices);  // before words(indices)
//   optimizer.catch_up();                       // all rows: before evaluation, and state_dict()
//
// Adagrad, Adadelta and Rprop without weight decay leave the weights of idle rows alone themselves.
// The others' idle rows are left as they are: Adam's weight_decay, for one, changes v by what the
// weight then is, step by step.
//
// To catch up on regularization is Carpenter's idea: "Lazy sparse stochastic gradient descent for
// regularized multinomial logistic regression", 2008.
//
// Parameters in bf16 and f16 are updated in f32, as their state is, and rounded to nearest: steps
// of less than half of the numbers' spacing are lost. With `.stochastic_rounding = true` they are
// rounded to one of the two numbers beside them by chance, so that they are right on average: Gupta
// et al., "Deep learning with limited numerical precision", ICML'15. Element i of parameter k takes
// at its t-th step the word i%4 of philox({i/4, 2^63 + 2^40·k + t-1}, seed)
// (tensor/round_by_chance.h), with the seed of default_generator(); what idle rows catch up on
// takes streams 2^62 higher. So the bits are the same for any number of threads, and of a run that
// was stopped and goes on.
//
// Beside the model's, a checkpoint holds the optimizer's state, with which training goes on as if
// it had not stopped:
//
//   save_safetensors("optimizer.safetensors", optimizer.state_dict());
//   optimizer.load_state_dict(load_safetensors("optimizer.safetensors"));
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quern/tensor/tensor.h"
#include "quern/tensor/tensor_dict.h"

/// Optimizers, schedules, clipping and averages: torch.optim's names.
namespace quern::optim {

/// What becomes of the rows that a step's row-sparse gradient does not have.
enum class Idle {
  lazy,      ///< nothing: they miss the step
  catch_up,  ///< later what the dense optimizer would have done, see above
};

class IdleRows;

/// What the states of a parameter start as.
using Initial = std::array<double, 2>;

/// Parameters that share options.
template <class Options>
struct Group {
  Tensors params;   ///< leaves
  Options options;  ///< of each of them
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, in place; the version of its storage moves on.
  /// Error, before anything has changed: a gradient that is not floating or of another shape.
  virtual void step() = 0;
  /// With Idle::catch_up, brings all rows of all parameters to where a dense optimizer with the
  /// same gradients would have them, and forgets the steps that it has kept for that (a few numbers
  /// each, and one a row). Else does nothing.
  void catch_up();
  /// The same of the rows `indices` (i64, any shape, in any order) of a parameter, which a forward
  /// is about to read. Errors: not a parameter of this optimizer; an index outside of its rows.
  void catch_up(const Tensor& param, const Tensor& indices);
  /// Drops the gradients, so that the next backward() starts from none.
  void zero_grad();

  /// From now on keeps a parameter's state in these tensors, in the order of their names in
  /// state_dict(): those of a RowTable, whose parameter saw `steps` steps before. Where that is
  /// none, they are set to what states start as. (A parameter on a RowTable has no state in memory:
  /// it gets one in the first step unless it has one by then.)
  /// Errors: not a parameter of this optimizer; another number of tensors;
  /// tensors that are not dense, of its shape, and f32 (f64 for f64).
  void use_state(const Tensor& param, const Tensors& state, int64_t steps);
  /// How many steps have updated it. Error: not a parameter of this optimizer.
  int64_t steps(const Tensor& param) const;

  size_t num_groups() const { return num_groups_; }  ///< counted from 0
  /// The rate of a group. Error: no such group.
  virtual double lr(size_t group = 0) const = 0;
  /// For all groups, or for one. Error: negative or not finite; no such group.
  void set_lr(double lr);
  virtual void set_lr(double lr, size_t group) = 0;

  /// Copies of the state of every parameter that has some, as "<parameter>.<name>", parameters
  /// counted through all groups in their order: "0.step" (i64, how many steps it has seen) and what
  /// the optimizer keeps of the parameter's shape, such as "0.momentum_buffer". Options, the rate
  /// among them, are the program's to set again. Error: rows that have not caught up, which
  /// catch_up() brings.
  TensorDict state_dict() const;
  /// Copies a state_dict() into the optimizer; what others stored in bf16, f16 or f32 is widened.
  /// Error, after which nothing has changed: a name that is not one of state_dict()'s, another
  /// shape, a dtype that holds more, a part of a parameter's state without the rest.
  void load_state_dict(const TensorDict& dict);

 protected:
  /// A parameter, and what is kept of it.
  struct Slot {
    Tensor param;  ///< a leaf
    /// From 0.
    size_t group;
    int64_t steps = 0;     ///< that have updated it
    Initial initial = {};  ///< what the states start as
    Tensor state[2] =
        {};  ///< of the parameter's shape, f32 (f64 for f64); undefined where there is none
    std::shared_ptr<IdleRows> idle = {};  ///< undefined but for Idle::catch_up
    size_t index = 0;                     ///< among all parameters
    bool stochastic_rounding = false;     ///< as the group's options say
  };

  /// `name` is for messages; `state_names` (one or two literals) name Slot::state in state dicts.
  /// Errors: no parameter at all; one that is undefined, not floating, not a leaf, or there twice.
  Optimizer(std::string_view name, std::vector<std::string_view> state_names,
            const std::vector<Tensors>& groups);

  /// State for the parameters of a group that will have a gradient: from the start, so that no step
  /// needs more memory than the first.
  void make_state(size_t group, const Initial& initial = {});
  void make_states();  ///< of all groups, from zeros
  /// For those parameters of a group that will have a gradient, and have rows.
  void make_idle(size_t group,
                 const std::function<std::shared_ptr<IdleRows>(const Tensor& param)>& make);
  /// Of the parameters of a group.
  void set_stochastic_rounding(size_t group, bool value);
  /// The slots with a gradient, every one checked; their rows that it has have caught up.
  std::vector<Slot*> slots_to_update();

  /// Errors: no such group; a rate that is negative or not finite.
  void check_group(size_t group) const;
  void check_rate(double lr) const;  ///< likewise

  size_t num_states() const { return state_names_.size(); }  ///< of a parameter

  const std::string_view name_;  ///< for messages

 private:
  size_t slot_of(std::string_view call, const Tensor& param) const;

  std::vector<std::string_view> state_names_;
  std::vector<Slot> slots_;
  size_t num_groups_;
};

/// One whose groups have options of their own, a rate `lr` among them.
template <class Options>
class OptimizerOf : public Optimizer {
 public:
  /// As Optimizer's.
  double lr(size_t group = 0) const final {
    check_group(group);
    return options_[group].lr;
  }
  using Optimizer::set_lr;
  /// As Optimizer's.
  void set_lr(double lr, size_t group) final {
    check_group(group);
    check_rate(lr);
    options_[group].lr = lr;
  }

 protected:
  /// As Optimizer's.
  OptimizerOf(std::string_view name, std::vector<std::string_view> state_names,
              const std::vector<Group<Options>>& groups)
      : Optimizer(name, std::move(state_names), params_of(groups)) {
    for (const auto& group : groups) {
      set_stochastic_rounding(options_.size(), group.options.stochastic_rounding);
      options_.push_back(group.options);
    }
  }

  /// A step() whose updates are a formula over elements. `step_of` gives the constants of a
  /// parameter's t-th step, t from 1, with the options of its group; `initial_of` what states start
  /// as where that is not zeros. (In detail/by_formula.h.)
  template <class Step>
  void step_by_formula(Step (*step_of)(const Options&, double t),
                       Initial (*initial_of)(const Options&) = nullptr);

  std::vector<Options> options_;  ///< of each group

 private:
  static std::vector<Tensors> params_of(const std::vector<Group<Options>>& groups) {
    std::vector<Tensors> params;
    for (const auto& group : groups) params.push_back(group.params);
    return params;
  }
};

}  // namespace quern::optim
