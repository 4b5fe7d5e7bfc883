#include "quern/nn/row_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "quern/nn/file_replacement.h"
#include "quern/nn/row_table_file.h"
#include "quern/ops/detail/row_groups.h"
#include "quern/tensor/check.h"
#include "quern/tensor/parallel.h"

namespace quern::nn {

using row_table::ChangedPages, row_table::Header, row_table::kRegion, row_table::Layout,
    row_table::Redo;

namespace {

constexpr std::string_view op = "RowTable";

/// Held to write: an open file that names its process.
File lock_to_write(const std::string& path) {
  File lock(path, O_RDWR | O_CREAT);
  check(lock.is_open(), op, "{}: expected a writable file, got: {}", path, File::reason());
  char text[300] = "", host[200] = "";
  if (!lock.lock()) {
    const ssize_t bytes = ::pread(lock.descriptor(), text, sizeof text - 1, 0);
    fail(op, fmt::format("{}: expected no other writer, got {}", path,
                         bytes > 0 ? std::string_view(text, static_cast<size_t>(bytes))
                                   : "one that has not said its name yet"));
  }
  ::gethostname(host, sizeof host - 1);
  const std::string name = fmt::format("process {} on {}", ::getpid(), host);
  const bool told =
      ::ftruncate(lock.descriptor(), 0) == 0 && lock.write_at(name.data(), std::ssize(name), 0);
  check(told, op, "{}: expected a writable file, got: {}", path, File::reason());
  return lock;
}

void create(const std::string& path, const RowTableOptions& options) {
  check(options.rows >= 1 && options.width >= 1, op,
        "{}: expected a file, or rows and width to make one of, got {}, {}", path, options.rows,
        options.width);
  Header header{.rows = options.rows, .width = options.width, .states = options.states};
  std::random_device random;
  header.id = uint64_t{random()} << 32 | random();
  to_string(options.dtype).copy(header.dtype, sizeof header.dtype);
  header.seal();
  const Layout layout = layout_of(path, header);
  FileReplacement file(op, path);
  file.write(&header, sizeof header);
  file.resize(layout.bytes);
  file.commit();
}

void check_as_asked(const std::string& path, const Header& header, const RowTableOptions& o) {
  if (o.rows == 0) return;
  const std::string_view dtype(header.dtype, ::strnlen(header.dtype, sizeof header.dtype));
  check(header.rows == o.rows && header.width == o.width && dtype == to_string(o.dtype) &&
            header.states == o.states,
        op, "{}: expected {} [{}, {}] with {} states, got {} [{}, {}] with {}", path, o.dtype,
        o.rows, o.width, o.states, dtype, header.rows, header.width, header.states);
}

/// A file system in memory has memory for a hole once it is read,
/// and ends who reads one when there is none.
void check_room_for_holes(const std::string& path, const File& file, const struct stat& status) {
  constexpr decltype(statfs::f_type) kTmpfs = 0x01021994;  // TMPFS_MAGIC of linux/magic.h
  struct statfs system {};
  if (::fstatfs(file.descriptor(), &system) != 0 || system.f_type != kTmpfs) return;
  const int64_t holes = status.st_size - status.st_blocks * 512;
  const int64_t room = static_cast<int64_t>(system.f_bavail) * system.f_bsize;
  check(holes <= room, op, "{}: expected {} bytes of room on a file system in memory, got {}", path,
        holes, room);
}

/// A private mapping of a file.
class Mapping {
 public:
  Mapping(const std::string& path, const File& file, int64_t bytes) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
    check(at != MAP_FAILED, op, "{}: expected {} bytes of addresses, got: {}", path, bytes,
          File::reason());
    begin_ = static_cast<std::byte*>(at);
    ::madvise(at, static_cast<size_t>(bytes), MADV_RANDOM);
  }
  ~Mapping() { ::munmap(begin_, static_cast<size_t>(bytes_)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* begin() const { return begin_; }

 private:
  std::byte* begin_;
  int64_t bytes_;
};

/// Brings pages into the file. Takes no memory, as the generation is there already. False, with
/// nothing lost, where the system refuses (a full disk).
bool copy_into(const File& file, const std::string& redo_path, int64_t n,
               FunctionRef<std::pair<const std::byte*, int64_t>(int64_t)> page,
               int64_t page_bytes) {
  for (int64_t i = 0; i < n; ++i) {
    const auto [data, offset] = page(i);
    if (!file.write_at(data, page_bytes, offset)) return false;
  }
  return file.sync() && ::unlink(redo_path.c_str()) == 0;
}

}  // namespace

struct RowTable::Opened {
  Opened(const std::string& path, const RowTableOptions& options);
  Header& header() const { return *reinterpret_cast<Header*>(mapping->begin()); }
  void recover();
  void flush(int64_t step);

  std::string path, redo_path;
  bool read_only;
  File writer;  // the lock
  File file;    // locked as long as a reader has it open, and by the writer while it changes it
  Layout layout{};
  std::optional<Mapping> mapping;
  std::optional<ChangedPages> changed;
};

RowTable::Opened::Opened(const std::string& table_path, const RowTableOptions& options)
    : path(table_path), redo_path(table_path + ".redo"), read_only(options.read_only) {
  check(options.states >= 0 && options.states <= 2, op, "states: expected 0..2, got {}",
        options.states);
  check(is_floating(options.dtype), op, "dtype: expected a floating one, got {}", options.dtype);
  const int flags = (read_only ? O_RDONLY : O_RDWR) | O_NONBLOCK;
  if (!read_only) writer = lock_to_write(path + ".lock");
  file = File(path, flags);
  if (!file.is_open() && errno == ENOENT && !read_only) {
    create(path, options);
    file = File(path, flags);
  }
  check(file.is_open(), op, "{}: expected a {} file, got: {}", path,
        read_only ? "readable" : "writable", File::reason());
  if (read_only)
    check(file.lock_shared(), op, "{}: expected a lock, got: {}", path, File::reason());

  Header start;
  const auto status = file.status();
  check(S_ISREG(status.st_mode) && file.read_at(&start, sizeof start, 0), op,
        "{}: expected a table of rows, got another or a damaged file", path);
  layout = layout_of(path, start);
  check(status.st_size == layout.bytes, op, "{}: expected {} bytes, got {}", path, layout.bytes,
        status.st_size);
  check_as_asked(path, start, options);
  check_room_for_holes(path, file, status);
  mapping.emplace(path, file, layout.bytes);
  if (!read_only) changed.emplace(path, mapping->begin(), layout.bytes);
  recover();
}

/// Does what a writer that was killed, or kept from it by a reader, has left to do; or where that
/// cannot be now, in memory alone.
void RowTable::Opened::recover() {
  const Redo redo(redo_path, header().id, layout.bytes);
  if (!redo.is_there()) return;
  const bool alone = !read_only && file.lock();
  std::vector<std::byte> page(static_cast<size_t>(redo.page_bytes()));
  const auto read = [&](int64_t i) {
    redo.read(i, page.data());
    return std::pair<const std::byte*, int64_t>(page.data(), redo.offset(i));
  };
  const bool copied = alone && copy_into(file, redo_path, redo.pages(), read, redo.page_bytes());
  if (alone) file.unlock();
  for (int64_t i = 0; i < redo.pages() && !copied; ++i)
    redo.read(i, mapping->begin() + redo.offset(i));
  check(header().is_sealed(), op, "{}: expected a table of rows, got a damaged one", path);
}

void RowTable::Opened::flush(int64_t step) {
  check(!read_only, op, "{}: expected a table opened to write, got one opened to read", path);
  const Header before = header();
  header().generation += 1;
  header().step = step;
  header().seal();
  const int64_t page_bytes = changed->page_bytes();
  std::vector<int64_t> pages;
  try {
    pages = changed->find();
    row_table::write_redo(redo_path, before.id, mapping->begin(), pages, page_bytes);
  } catch (...) {
    header() = before;
    throw;
  }
  if (!file.lock()) return;  // a reader has the file: the redo stays, and the pages in memory
  const auto page = [&](int64_t i) {
    const int64_t offset = pages[static_cast<size_t>(i)] * page_bytes;
    return std::pair<const std::byte*, int64_t>(mapping->begin() + offset, offset);
  };
  const bool copied = copy_into(file, redo_path, std::ssize(pages), page, page_bytes);
  file.unlock();
  if (!copied) return;  // likewise
  row_table::each_run(pages, [&](int64_t first, int64_t count) {
    ::madvise(mapping->begin() + first * page_bytes, static_cast<size_t>(count * page_bytes),
              MADV_DONTNEED);
  });
}

RowTable RowTable::open(const std::string& path, const RowTableOptions& options) {
  // Of one name, whichever links lead to it: so that there is one lock.
  std::error_code none;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, none);
  auto opened = std::make_shared<Opened>(none ? path : target.string(), options);
  const Layout& layout = opened->layout;
  const Header& header = opened->header();
  const auto part = [&](int64_t begin, DType dtype) {
    const Shape shape{header.rows, header.width};
    auto storage = std::make_shared<Storage>(opened->mapping->begin() + begin,
                                             numel(shape) * itemsize(dtype), opened);
    return Tensor(std::move(storage), shape, {header.width, 1}, 0, dtype);
  };
  RowTable table(opened);
  table.weight_ = part(kRegion, layout.dtype);
  for (int64_t i = 0; i < header.states; ++i)
    table.state_.push_back(part(layout.state_begin + i * layout.state_stride, layout.state_dtype));
  return table;
}

int64_t RowTable::generation() const { return opened_->header().generation; }
int64_t RowTable::step() const { return opened_->header().step; }
int64_t RowTable::dirty_bytes() const {
  return opened_->read_only ? 0
                            : std::ssize(opened_->changed->find()) * opened_->changed->page_bytes();
}
void RowTable::flush(int64_t step) { opened_->flush(step); }

void RowTable::fetch(const Tensor& indices) const {
  const Header& header = opened_->header();
  const Tensor list = detail::check_indices(op, indices, header.rows);
  const Layout& layout = opened_->layout;
  const std::span rows(list.data<int64_t>(), static_cast<size_t>(list.numel()));
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const auto page_at = [&](int64_t page) { return opened_->mapping->begin() + page * page_bytes; };
  /// Of the weight, then of the states: f(first page, last page) of a row.
  const auto each_page_range = [&](int64_t row, const auto& f) {
    for (int64_t i = -1; i < header.states; ++i) {
      const int64_t bytes = header.width * itemsize(i < 0 ? layout.dtype : layout.state_dtype);
      const int64_t region = i < 0 ? kRegion : layout.state_begin + i * layout.state_stride;
      const int64_t begin = region + row * bytes;
      f(begin / page_bytes, (begin + bytes - 1) / page_bytes);
    }
  };

  // Of all, 64 are looked at: where the table has been in memory for long, all of them are.
  bool in_memory = true;
  for (size_t i = 0; i < rows.size(); i += std::max<size_t>(1, rows.size() / 64))
    each_page_range(rows[i], [&](int64_t first, int64_t) {
      unsigned char resident = 0;
      if (in_memory)
        in_memory = ::mincore(page_at(first), static_cast<size_t>(page_bytes), &resident) == 0 &&
                    (resident & 1) != 0;
    });
  if (in_memory) return;

  std::vector<int64_t> pages;
  for (const int64_t row : rows)
    each_page_range(row, [&](int64_t first, int64_t last) {
      for (int64_t page = first; page <= last; ++page) pages.push_back(page);
    });
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  row_table::each_run(pages, [&](int64_t first, int64_t count) {
    ::madvise(page_at(first), static_cast<size_t>(count * page_bytes), MADV_WILLNEED);
  });
}

}  // namespace quern::nn
