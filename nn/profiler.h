// Profiler: where the time of a program goes, by torch.profiler's habits.
//
//   Profiler profile("trace.json");
//   for (...) {
//     train_batch();
//     profile.step();
//   }
//   profile.stop();
//   fmt::print("{}", profile.table());
//
// The file opens in https://ui.perfetto.dev and chrome://tracing: each thread with steps, modules,
// ops, and its shares of the ops' kernels, inside of each other, and the memory in use. Threads go
// on beside each other as they do unwatched. Its "summary" has the rows of all tables
// (profiler_trace.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

/// Which steps are recorded, torch.profiler.schedule: after `skip_first` steps, over and over,
/// `wait` that are not, `warmup` that are, for nothing, and `active` that are. `repeat`: so many
/// times; 0: for ever.
struct ProfilerSchedule {
  int64_t wait = 0, warmup = 0, active = int64_t{1} << 60, repeat = 0, skip_first = 0;  ///< steps
};

/// What the rows of the table are: ops; modules by dotted name, backward passes with the module
/// that called the op; ops by problem and formats; kernels.
enum class ProfileBy { op, module, shape, kernel };
/// "op", "module", "shape", "kernel". Error: any other.
ProfileBy profile_by(std::string_view name);

/// What the machine can do at most, on some threads: the roofs of a roofline. Empty: not known.
struct ProfilerPeaks {
  /// How fast it multiplies.
  struct Arithmetic {
    std::string isa;  ///< of the instructions that were timed
    bool bf16;        ///< factors; else f32
    double gflops;    ///< 1e9 operations a second
  };
  /// How fast a level of memory is.
  struct Memory {
    std::string level;  ///< "L1", "L2", "L3", "memory"
    int64_t bytes;      ///< that all threads' shares of it hold
    double gbytes;      ///< 1e9 bytes a second, reads and writes
  };
  int threads = 0;                          ///< that were timed together
  std::vector<Arithmetic> arithmetic = {};  ///< of each instruction set
  std::vector<Memory> memory = {};          ///< from the nearest on; the last one holds everything

  /// The fastest; bf16 may be widened to f32. 0: not known.
  double gflops(bool bf16) const;

  /// What work takes at least, and why.
  struct Bound {
    std::string_view by = {};  ///< "arithmetic" or the level; "": not known
    double seconds = 0;        ///< at least
  };
  /// Of work: its operations at the peak of their dtype, or its bytes at the rate of the nearest
  /// level that holds them all, whichever is longer.
  Bound bound(int64_t flop, bool bf16, int64_t bytes) const;

  /// "2 threads: 235 GFLOP/s in f32, 468 in bf16; L1 ..., memory 88.1 GB/s"
  std::string describe() const;
  std::string json() const;  ///< for parse()
  /// None if it is no such text.
  static std::optional<ProfilerPeaks> parse(const std::string& json);
};

class Profiler {
 public:
  /// Starts. `path`: where stop() writes the trace; "": nowhere. Errors: a path that cannot be
  /// written; a schedule of less than 0, or without active steps; another Profiler that has started
  /// and not stopped. `peaks`: asked when it stops, for what shares are of; null: none are shown.
  explicit Profiler(std::string path, const ProfilerSchedule& schedule = {},
                    std::function<ProfilerPeaks()> peaks = nullptr);
  /// stop(); its error is said on standard error.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// After stop(): goes on with a new step. Errors: it has started; another one has.
  void start();
  /// The end of a step, and the beginning of the next. What other threads are in meanwhile is cut
  /// off at the steps' ends. Error: it has not started.
  void step();
  /// The end of the last step, which is left out if nothing happened in it. Writes the trace.
  /// Error: the system's. Not started: does nothing.
  void stop();

  /// Of the active steps up to stop(). Columns:
  ///   calls    those inside of another one of the same row not counted
  ///   total    from begin to end of these, summed
  ///   self     A moment of a step belongs, in equal parts, to the innermost span of each thread
  ///            that is in one. Cells of a parallel_for and tasks are the op's that gave them. A
  ///            thread that waits for others counts where all do. So the column sums up to the time
  ///            of the steps.
  ///   GFLOP/s  floating operations by self time; beside it the share of the arithmetic's peak,
  ///            that of bf16 where the kernel's name says so
  ///   GB/s     operands, each read or written once, by self time; beside it the share of the
  ///            memory's bandwidth: more than 100% where operands are found in caches
  ///   bound    what takes longest of what the calls take at least (ProfilerPeaks::bound); beside
  ///            it the share of that least time in the self time: how near the row is to its roof
  std::string table(ProfileBy by = ProfileBy::op) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quern
