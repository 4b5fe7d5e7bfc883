// RowTable: an embedding's table in a file, with what its optimizer keeps of it;
// larger than memory.
//
//   nn::RowTable table = nn::RowTable::open("words.rows", {10'000'000, 128, DType::f32, 2});
//   nn::Embedding words(table.weight(), {.sparse = true});
//   optim::Adam optimizer(words.parameters());
//   optimizer.use_state(words.weight, table.state(), table.step());
//   ... train ...
//   table.flush(optimizer.steps(words.weight));
//
// The file is mapped privately. Rows are read through the page cache, which the system may drop at
// any time; what is written goes to copies of its pages (4 KiB, whatever a row takes), which are
// memory until flush(). So memory follows the rows changed since then, not the table: call flush()
// before dirty_bytes() is more than there is to spare. (What rows have missed of idle steps is not
// in the file: with Idle::catch_up, optimizer.catch_up() goes before flush().)
//
// Generations: flush() writes the changed pages to "<path>.redo", which takes its name once it is
// whole and on the disk. That is the switch: before it there is the last generation, after it the
// new one, whenever a process is killed or a machine stops. Only then the pages are copied into the
// file, and the redo is removed; open() does so where a process had no time to. Each changed page
// is written twice.
//
// One writer and any number of readers: who opens the table to write holds "<path>.lock", which
// says its process and host. A reader sees the generation that was the last when it opened the
// table, for as long as it has it open; the writer leaves the file as it is for so long, and newer
// generations in the redo. (Locks are flock()'s, which not all network file systems have.)
#pragma once
#include <memory>
#include <string>

#include "quern/tensor/tensor.h"

namespace quern::nn {

/// What a new table is, and what an existing one has to be.
struct RowTableOptions {
  int64_t rows = 0, width = 0;  ///< 0: as in the file, all four
  DType dtype = DType::f32;     ///< floating
  int states = 0;               ///< tensors that the optimizer keeps, 0..2: Adam has 2
  bool read_only = false;       ///< beside a writer, and without leave to write
};

/// A handle, as a Tensor is. The table is open for as long as a handle or one of its tensors lives.
class RowTable {
 public:
  /// Opens a table, or makes one of zeros, in a sparse file: it takes no room on the disk until
  /// rows are written (on a tmpfs, until they are read: all of it has to fit). Errors: another
  /// writer, by name; a file that is no table, is cut short, or disagrees with itself or with the
  /// options; one that is missing, with read_only or without sizes; no permission; no room on a
  /// tmpfs; a Linux without /proc/self/pagemap.
  static RowTable open(const std::string& path, const RowTableOptions& options = {});

  const Tensor& weight() const { return weight_; }  ///< [rows, width], no parameter yet
  /// [rows, width] each, f32, or f64 where the weight is that.
  const Tensors& state() const { return state_; }
  int64_t generation() const;  ///< counts flushes, from 0
  int64_t step() const;        ///< what the last flush() was told; 0 of a new table
  /// Memory of the pages that were changed since the last flush(). Takes time by the table's size:
  /// a look at 8 bytes a page.
  int64_t dirty_bytes() const;
  /// Has the system begin to read these rows (i64, any shape) of the weight and the states, all of
  /// them at once, and comes back before they are there. Without it a step on rows that are not in
  /// memory waits for one page after the other. Costs a system call for each run of pages, or,
  /// where 64 of the rows, evenly chosen, are in memory, a call for each of these and nothing else.
  /// Error: another dtype, an index outside of the table.
  void fetch(const Tensor& indices) const;
  /// Makes weight and state as they are the next generation, and gives their memory back. On return
  /// it is on the disk. Errors, after which the last generation is as it was, the changes are still
  /// there, and it may be tried again: a table opened to read; a full disk,
  /// and what the system says.
  void flush(int64_t step = 0);

 private:
  struct Opened;
  explicit RowTable(std::shared_ptr<Opened> opened) : opened_(std::move(opened)) {}
  std::shared_ptr<Opened> opened_;
  Tensor weight_;
  Tensors state_;
};

}  // namespace quern::nn
