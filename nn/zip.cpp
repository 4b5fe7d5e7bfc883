#include "quern/nn/zip.h"

#include "quern/nn/safetensors_header.h"
#include "quern/tensor/check.h"

#ifdef QUERN_HAS_LIBZIP
#include <fcntl.h>
#include <unistd.h>
#include <zip.h>
#endif

namespace quern {

namespace {
constexpr std::string_view op = "load_pth";
}

#ifdef QUERN_HAS_LIBZIP

void ZipFile::Close::operator()(zip* archive) const { zip_discard(archive); }

ZipFile::ZipFile(const std::string& path, const File& file)
    : path_(path), file_bytes_(file.status().st_size) {
  const int descriptor = ::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0);  // libzip closes its own
  check(descriptor >= 0, op, "{}: expected a readable file, got: {}", path, File::reason());
  int code = 0;
  zip_.reset(zip_fdopen(descriptor, 0, &code));
  if (zip_) return;
  ::close(descriptor);
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string reason = zip_error_strerror(&error);
  zip_error_fini(&error);
  fail(op, fmt::format("{}: expected a zip file, got: {}", path, reason));
}

uint64_t ZipFile::num_entries() const {
  return static_cast<uint64_t>(zip_get_num_entries(zip_.get(), 0));
}

std::string ZipFile::name(uint64_t index) const {
  const char* name = zip_get_name(zip_.get(), index, ZIP_FL_ENC_RAW);
  return name == nullptr ? "" : name;
}

bool ZipFile::contains(const std::string& name) const {
  return zip_name_locate(zip_.get(), name.c_str(), ZIP_FL_ENC_RAW) >= 0;
}

ZipFile::Entry ZipFile::find(const std::string& name) const {
  zip_stat_t status;
  zip_stat_init(&status);
  check(zip_stat(zip_.get(), name.c_str(), ZIP_FL_ENC_RAW, &status) == 0, op,
        "{}: expected an entry {}, got none", path_, safetensors::quote(name));
  constexpr zip_uint64_t needed =
      ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  check((status.valid & needed) == needed && status.comp_method == ZIP_CM_STORE &&
            status.encryption_method == ZIP_EM_NONE,
        op, "{}: {}: expected a stored entry, as torch.save writes them, got a compressed one",
        path_, safetensors::quote(name));
  check(status.size <= static_cast<zip_uint64_t>(file_bytes_), op,
        "{}: {}: expected at most the {} bytes of the file, got {}", path_,
        safetensors::quote(name), file_bytes_, status.size);
  return {status.index, static_cast<int64_t>(status.size)};
}

void ZipFile::read(const Entry& entry, void* data) const {
  const auto close = [](zip_file_t* file) { zip_fclose(file); };
  const std::unique_ptr<zip_file_t, decltype(close)> file(
      zip_fopen_index(zip_.get(), entry.index, 0), close);
  const auto require = [&](bool ok, const char* reason) {
    check(ok, op, "{}: {}: expected {} bytes, got: {}", path_,
          safetensors::quote(name(entry.index)), entry.bytes, reason);
  };
  require(file != nullptr, zip_strerror(zip_.get()));
  const zip_int64_t done = zip_fread(file.get(), data, static_cast<zip_uint64_t>(entry.bytes));
  require(done >= 0, zip_file_strerror(file.get()));
  require(done == entry.bytes, "fewer");
  char beyond;  // at the end libzip compares the checksum
  const zip_int64_t more = zip_fread(file.get(), &beyond, 1);
  require(more >= 0, zip_file_strerror(file.get()));
  require(more == 0, "more");
}

#else

void ZipFile::Close::operator()(zip*) const {}

ZipFile::ZipFile(const std::string& path, const File&) : path_(path), file_bytes_(0) {
  fail(op, fmt::format("{}: expected a quern that was built with libzip to read a zip file, got "
                       "one without",
                       path));
}

// Of no object.
uint64_t ZipFile::num_entries() const { return 0; }
std::string ZipFile::name(uint64_t) const { return ""; }
bool ZipFile::contains(const std::string&) const { return false; }
ZipFile::Entry ZipFile::find(const std::string&) const { return {}; }
void ZipFile::read(const Entry&, void*) const {}

#endif

}  // namespace quern
