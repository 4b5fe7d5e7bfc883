#include "quern/ops/autocast.h"

#include <mutex>

#include "quern/autograd/node.h"
#include "quern/ops/convert.h"
#include "quern/tensor/fork.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

/// The copy lives in the leaf's Variable and so as long as the leaf. It has no history: each use
/// records its own, since backward() passes a node once.
Tensor kept_copy(const Tensor& leaf) {
  static std::mutex& mutex = *[] {  // one model may serve many threads
    auto* const made = new std::mutex;
    detail::hold_across_fork(*made);
    return made;
  }();
  const auto v = variable(leaf);
  const std::lock_guard lock(mutex);
  const uint64_t version = leaf.version();  // before it is read: it may be written meanwhile
  if (!v->lowered.defined() || v->lowered_version != version || leaf.exposed()) {
    v->lowered = Tensor();
    v->lowered = raw::to(leaf, DType::bf16);
    v->lowered_version = version;
  }
  return raw::alias(v->lowered);
}

}  // namespace

AutocastGuard::AutocastGuard(bool enabled) : before_(autocast_enabled()) {
  detail::thread_mode().autocast = enabled;
}
AutocastGuard::~AutocastGuard() { detail::thread_mode().autocast = before_; }

bool autocast_enabled() { return detail::thread_mode().autocast; }

namespace autocast {

Tensor lower(const Tensor& t) {
  if (!autocast_enabled() || !t.defined() || t.dtype() != DType::f32) return t;
  if (!t.requires_grad() || !t.is_leaf()) return to(t, DType::bf16);
  return record(
      "to", kept_copy(t), {t},
      [](const Tensor& dy, Needs) -> Tensors { return {raw::to(dy, DType::f32)}; }, GradDType::any);
}

Tensor widen(const Tensor& t) {
  if (!autocast_enabled() || !t.defined() || t.dtype() != DType::bf16) return t;
  return to(t, DType::f32);
}

}  // namespace autocast
}  // namespace quern
