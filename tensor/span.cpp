#include "quern/tensor/span.h"

#include <cxxabi.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "quern/tensor/check.h"
#include "quern/tensor/events.h"
#include "quern/tensor/fork.h"
#include "quern/tensor/storage.h"
#include "quern/tensor/verbose.h"

namespace quern {

using namespace detail;

namespace {

/// "ResNet" of quern::nn::ResNet, as std::type_info names it.
std::string class_of(const char* type) {
  const std::unique_ptr<char, void (*)(void*)> full(
      abi::__cxa_demangle(type, nullptr, nullptr, nullptr), std::free);
  const std::string_view name = full ? full.get() : type;
  const std::string_view untemplated = name.substr(0, name.find('<'));
  return std::string(untemplated.substr(untemplated.rfind(':') + 1));
}

/// The events of one thread, which writes while another may read.
class Buffer {
 public:
  explicit Buffer(int thread) : thread_(thread) {}
  int thread() const { return thread_; }

  // For the thread.
  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    key_.assign(text);
    return *texts_.insert(key_).first;
  }
  /// The same of a text that is often the one of the last event.
  std::string_view keep(std::string_view text, std::string_view Event::*of) {
    const std::string_view last = last_event_.*of;
    return text == last ? last : keep(text);
  }
  void push(const Event& event) {
    last_event_ = event;
    int at = last_->count.load(std::memory_order_relaxed);
    if (at == kEvents) {
      Chunk* const next = new Chunk;
      last_->next.store(next, std::memory_order_release);
      last_ = next, at = 0;
    }
    last_->events[static_cast<size_t>(at)] = event;
    last_->count.store(at + 1, std::memory_order_release);
  }

  // For the reader.
  /// Those that began at `since` or later; it is rid of all.
  void take(std::vector<Event>& to, int64_t since) {
    while (true) {
      const int count = first_->count.load(std::memory_order_acquire);
      for (; taken_ < count; ++taken_) {
        const Event& event = first_->events[static_cast<size_t>(taken_)];
        if (event.begin >= since) to.push_back(event);
      }
      Chunk* const next = first_->next.load(std::memory_order_acquire);
      if (count < kEvents || next == nullptr) return;
      first_.reset(next);
      taken_ = 0;
    }
  }

 private:
  static constexpr int kEvents = 256;
  struct Chunk {
    std::array<Event, kEvents> events;
    std::atomic<int> count = 0;
    std::atomic<Chunk*> next = nullptr;
  };

  const int thread_;
  std::unordered_set<std::string> texts_;
  std::string key_;
  Event last_event_;
  std::unique_ptr<Chunk> first_ = std::make_unique<Chunk>();
  int taken_ = 0;
  Chunk* last_ = first_.get();
};

/// All threads that ever had an event. Never destroyed: threads may outlive statics.
struct Recorder {
  std::mutex mutex;
  std::deque<Buffer> buffers;
  int64_t since = 0;
  bool on = false;
  Recorder() { hold_across_fork(mutex); }
};
Recorder& recorder() {
  static Recorder& instance = *new Recorder;
  return instance;
}

thread_local Buffer* own_buffer = nullptr;

Buffer& buffer() {
  if (own_buffer == nullptr) {
    Recorder& all = recorder();
    const std::lock_guard lock(all.mutex);
    own_buffer = &all.buffers.emplace_back(static_cast<int>(all.buffers.size()));
  }
  return *own_buffer;
}

/// What cannot be recorded for want of memory is left out: no op fails because someone watches.
template <class F>
void if_possible(F f) noexcept {
  try {
    f();
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

// ---- spans ----

void Span::open(int watchers, std::string_view suffix, std::string_view module) noexcept {
  if_possible([&] {
    const int now = detail::watchers.load(std::memory_order_relaxed) & watchers;
    if (now & kRecorder) {
      parent_ = innermost_span;
      module_ = module.empty() ? current_module() : module;
      name_ = buffer().keep(suffix.empty() ? name_ : std::string(name_).append(suffix));
      innermost_span = this;
    }
    watched_ = now;
    begin_ = nanoseconds_now();
  });
}

void Span::open_module(const char* type) noexcept {
  if_possible([&] {
    const std::string_view around = current_module();
    std::string path(around);
    if (!path.empty() && !name_.empty()) path += '.';
    path += name_;
    module_ = buffer().keep(path);
    name_ = module_.empty() || name_.empty() ? buffer().keep(class_of(type)) : module_;
    parent_ = innermost_span;
    innermost_span = this;
    watched_ = kRecorder;
    begin_ = nanoseconds_now();
  });
}

void Span::close() noexcept {
  const int64_t end = nanoseconds_now();
  if (watched_ & kPrinter) print_op(*this, end - begin_);
  if ((watched_ & kRecorder) == 0) return;
  innermost_span = parent_;
  if_possible([&] {
    Buffer& own = buffer();
    own.push({kind_, own.thread(), begin_, end, name_, name_, own.keep(kernel_, &Event::kernel),
              own.keep(problem_, &Event::problem), own.keep(formats_, &Event::formats), module_,
              flop_, bytes_, memory_in_use()});
  });
}

int64_t SharedSpan::now() { return nanoseconds_now(); }

void SharedSpan::record(SpanKind kind, int64_t begin, int64_t end,
                        std::string_view name) const noexcept {
  if_possible([&] {
    Buffer& own = buffer();
    Event event{.kind = kind, .thread = own.thread(), .begin = begin, .end = end};
    event.op = "parallel_for";
    if (of_ != nullptr) {
      event.op = own.keep(of_->name(), &Event::op);
      event.kernel = own.keep(of_->kernel(), &Event::kernel);
      event.problem = own.keep(of_->problem(), &Event::problem);
      event.formats = own.keep(of_->formats(), &Event::formats);
      event.module = of_->module();
    }
    event.name = !name.empty()          ? own.keep(name, &Event::name)
                 : event.kernel.empty() ? event.op
                                        : event.kernel;
    own.push(event);
  });
}

// ---- who watches ----

int detail::ask_watchers() {
  static_cast<void>(verbosity());
  return watchers.load(std::memory_order_relaxed);
}

void detail::set_watcher(Watcher who, bool on) {
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  const int now = std::max(watchers.load(std::memory_order_relaxed), 0);
  watchers.store(on ? now | who : now & ~who, std::memory_order_relaxed);
}

// ---- recording ----

void detail::start_recording(std::string_view op) {
  ask_watchers();
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  check(!all.on, op, "expected no other profiler at work, got a second one");
  all.on = true;
  all.since = nanoseconds_now();
  set_watcher(kRecorder, true);
}

void detail::stop_recording() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  set_watcher(kRecorder, false);
  all.on = false;
}

std::vector<Event> detail::take_events() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  std::vector<Event> events;
  for (Buffer& each : all.buffers) each.take(events, all.since);
  return events;
}

int64_t detail::nanoseconds_now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

int detail::thread_number() { return buffer().thread(); }

}  // namespace quern
