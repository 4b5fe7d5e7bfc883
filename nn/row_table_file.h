// What RowTable has on the disk, and how its pages get there.
//
//   <path>       header, zeros to kRegion; weight; states; each from a multiple of kRegion
//   <path>.redo  RedoHeader | i64 page numbers, rising | pages | u64 checksum of all before
//
// Numbers are little-endian, pages count from the beginning of <path>.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quern/nn/file.h"
#include "quern/tensor/dtype.h"

namespace quern::nn::row_table {

inline constexpr int64_t kRegion = 65536;  // a multiple of any page

struct Header {
  char magic[16] = "quern row table";
  uint64_t id = 0;  // of the table, which its redo names
  int64_t rows = 0, width = 0, states = 0;
  char dtype[8] = {};
  int64_t generation = 0, step = 0;
  uint64_t checksum = 0;  // of what comes before

  void seal();
  bool is_sealed() const;
};

/// Where the parts lie. Sizes are those of a header that is not trusted.
struct Layout {
  DType dtype, state_dtype;
  int64_t state_begin, state_stride, bytes;  // of the file
};
/// Error: not a table, or one whose sizes do not fit. Takes no memory by them.
Layout layout_of(const std::string& path, const Header& header);

/// A checksum of bytes that come in pieces, each but the last of a multiple of 8.
class Checksum {
 public:
  void add(const void* data, int64_t bytes);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

/// The pages of a private mapping that are not the file's any more.
class ChangedPages {
 public:
  ChangedPages(const std::string& path, std::byte* begin, int64_t bytes);
  std::vector<int64_t> find() const;
  int64_t page_bytes() const { return page_bytes_; }

 private:
  std::string path_;
  std::byte* begin_;
  int64_t bytes_, page_bytes_;
  File pagemap_;
};

/// f(first, count) for pages that are neighbours, of numbers that rise.
template <class F>
void each_run(const std::vector<int64_t>& pages, F f) {
  for (size_t i = 0; i < pages.size();) {
    size_t end = i + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
    f(pages[i], static_cast<int64_t>(end - i));
    i = end;
  }
}

/// Writes a redo of these pages; on return it has its name, on the disk.
void write_redo(const std::string& path, uint64_t id, const std::byte* begin,
                const std::vector<int64_t>& pages, int64_t page_bytes);
/// A redo, held to be whole, of the table and of its length; not open where there is none. Error: a
/// file that is anything else.
class Redo {
 public:
  Redo(const std::string& path, uint64_t id, int64_t file_bytes);
  bool is_there() const { return file_.is_open(); }
  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t offset(int64_t i) const { return pages_[static_cast<size_t>(i)] * page_bytes_; }
  void read(int64_t i, std::byte* page) const;

 private:
  std::string path_;
  File file_;
  std::vector<int64_t> pages_;
  int64_t page_bytes_ = 0;
};

}  // namespace quern::nn::row_table
