#include "quern/nn/row_table_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "quern/nn/file_replacement.h"
#include "quern/tensor/check.h"

namespace quern::nn::row_table {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view op = "RowTable";

struct RedoHeader {
  char magic[16] = "quern row redo";
  uint64_t id = 0;
  int64_t page_bytes = 0, pages = 0;
};

uint64_t checksum_of(const Header& header) {
  Checksum sum;
  sum.add(&header, offsetof(Header, checksum));
  return sum.value();
}

int64_t to_region(int64_t bytes) { return (bytes + kRegion - 1) / kRegion * kRegion; }

}  // namespace

void Header::seal() { checksum = checksum_of(*this); }
bool Header::is_sealed() const {
  return std::memcmp(magic, Header().magic, sizeof magic) == 0 && checksum == checksum_of(*this);
}

Layout layout_of(const std::string& path, const Header& header) {
  check(header.is_sealed(), op, "{}: expected a table of rows, got another or a damaged file",
        path);
  const std::string_view name(header.dtype, ::strnlen(header.dtype, sizeof header.dtype));
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (to_string(dtype) != name) continue;
    const DType state = accumulator(dtype);
    const bool small = header.rows >= 1 && header.width >= 1 && header.states >= 0 &&
                       header.states <= 2 &&
                       header.rows <= (int64_t{1} << 56) / header.width;  // times 24 bytes fits
    check(small, op,
          "{}: expected rows and width of at least 1 that fit, and 0..2 states, got {}, {}, {}",
          path, header.rows, header.width, header.states);
    const int64_t elements = header.rows * header.width;
    const int64_t weight = to_region(elements * itemsize(dtype));
    const int64_t stride = to_region(elements * itemsize(state));
    return {dtype, state, kRegion + weight, stride, kRegion + weight + header.states * stride};
  }
  fail(op, fmt::format("{}: expected f32, bf16, f16 or f64, got \"{}\"", path, name));
}

void Checksum::add(const void* data, int64_t bytes) {
  const auto mix = [this](uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15;
    value_ ^= value_ >> 32;
  };
  const auto* p = static_cast<const std::byte*>(data);
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  if (bytes == 0) return;
  uint64_t rest = 0;
  std::memcpy(&rest, p, static_cast<size_t>(bytes));
  mix(rest);
}

ChangedPages::ChangedPages(const std::string& path, std::byte* begin, int64_t bytes)
    : path_(path),
      begin_(begin),
      bytes_(bytes),
      page_bytes_(::sysconf(_SC_PAGESIZE)),
      pagemap_("/proc/self/pagemap", O_RDONLY) {
  check(pagemap_.is_open(), op, "{}: expected a readable /proc/self/pagemap, got: {}", path_,
        File::reason());
}

/// An entry of pagemap says of a page that it is in memory (bit 63) or swapped out (62), and that
/// it belongs to a file (61): of a private mapping's, a page of memory that no file has is one that
/// was written. (Linux, Documentation/admin-guide/mm/pagemap.rst.)
std::vector<int64_t> ChangedPages::find() const {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62;
  constexpr uint64_t kOfFile = uint64_t{1} << 61;
  constexpr int64_t kBatch = 8192;
  const int64_t first = static_cast<int64_t>(std::bit_cast<uintptr_t>(begin_)) / page_bytes_;
  const int64_t count = bytes_ / page_bytes_;
  std::vector<uint64_t> entries(kBatch);
  std::vector<int64_t> changed;
  for (int64_t page = 0; page < count; page += kBatch) {
    const int64_t n = std::min(kBatch, count - page);
    const bool read = pagemap_.read_at(entries.data(), n * 8, (first + page) * 8);
    check(read, op, "{}: expected a readable /proc/self/pagemap, got: {}", path_, File::reason());
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t entry = entries[static_cast<size_t>(i)];
      if ((entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0)
        changed.push_back(page + i);
    }
  }
  return changed;
}

void write_redo(const std::string& path, uint64_t id, const std::byte* begin,
                const std::vector<int64_t>& pages, int64_t page_bytes) {
  FileReplacement file(op, path);
  Checksum sum;
  const auto write = [&](const void* data, int64_t bytes) {
    sum.add(data, bytes);
    file.write(data, bytes);
  };
  const RedoHeader header{.id = id, .page_bytes = page_bytes, .pages = std::ssize(pages)};
  write(&header, sizeof header);
  write(pages.data(), header.pages * 8);
  each_run(pages, [&](int64_t first, int64_t count) {
    write(begin + first * page_bytes, count * page_bytes);
  });
  const uint64_t value = sum.value();
  file.write(&value, sizeof value);
  file.commit();
}

Redo::Redo(const std::string& path, uint64_t id, int64_t file_bytes)
    : path_(path), file_(path, O_RDONLY | O_NONBLOCK) {
  check(file_.is_open() || errno == ENOENT, op, "{}: expected a readable file, got: {}", path,
        File::reason());
  if (!file_.is_open()) return;
  RedoHeader header;
  const int64_t bytes = file_.status().st_size;
  const auto require = [&](bool ok) {
    check(ok, op, "{}: expected the redo of the table beside it, got another or a damaged file",
          path);
  };
  require(bytes >= static_cast<int64_t>(sizeof header) + 8);
  require(file_.read(&header, sizeof header));
  require(std::memcmp(header.magic, RedoHeader().magic, sizeof header.magic) == 0);
  require(header.id == id && header.page_bytes >= 512 && kRegion % header.page_bytes == 0);
  const int64_t rest = bytes - static_cast<int64_t>(sizeof header) - 8;
  require(header.pages >= 0 && rest % (8 + header.page_bytes) == 0 &&
          header.pages == rest / (8 + header.page_bytes));
  page_bytes_ = header.page_bytes;
  pages_.resize(static_cast<size_t>(header.pages));
  require(file_.read(pages_.data(), header.pages * 8));
  Checksum sum;
  sum.add(&header, sizeof header);
  sum.add(pages_.data(), header.pages * 8);
  std::vector<std::byte> page(static_cast<size_t>(page_bytes_));
  int64_t least = 0;
  for (const int64_t number : pages_) {
    require(number >= least && number < file_bytes / page_bytes_);
    least = number + 1;
    require(file_.read(page.data(), page_bytes_));
    sum.add(page.data(), page_bytes_);
  }
  uint64_t value = 0;
  require(file_.read(&value, sizeof value) && value == sum.value());
}

void Redo::read(int64_t i, std::byte* page) const {
  const int64_t at = static_cast<int64_t>(sizeof(RedoHeader)) + pages() * 8 + i * page_bytes_;
  check(file_.read_at(page, page_bytes_, at), op, "{}: expected a readable file, got: {}", path_,
        File::reason());
}

}  // namespace quern::nn::row_table
