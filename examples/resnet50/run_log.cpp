#include "run_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <utility>

#include "console.h"
#include "quern/tensor/check.h"
#include "write_text.h"

namespace resnet50 {
namespace {

constexpr std::string_view kHeader =
    "epoch,step,lr,loss,top1,top5,images_per_second,data_seconds\n";

/// The epoch and step that a line begins with; {-1, -1} for another line.
std::pair<int64_t, int64_t> position(const std::string& line) {
  int64_t epoch = -1, step = -1;
  const char* end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, epoch);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ',') return {-1, -1};
  const auto second = std::from_chars(first.ptr + 1, end, step);
  if (second.ec != std::errc() || second.ptr == end || *second.ptr != ',') return {-1, -1};
  return {epoch, step};
}

/// The header, and the lines up to (epoch, step) that are in order and whole.
std::string lines_until(const std::string& path, std::pair<int64_t, int64_t> last) {
  std::string text(kHeader), line;
  std::ifstream file(path, std::ios::binary);
  std::getline(file, line);
  for (std::pair<int64_t, int64_t> before{-1, -1}; std::getline(file, line) && !file.eof();) {
    const auto at = position(line);
    if (at <= before || at > last) break;
    text += line + '\n';
    before = at;
  }
  return text;
}

}  // namespace

RunLog::RunLog(const std::string& path, int64_t epoch, int64_t step) : path_(path) {
  const std::string text =
      epoch == 0 && step == 0 ? std::string(kHeader) : lines_until(path, {epoch, step});
  write_text(path, text);
  bytes_ = static_cast<int64_t>(text.size());
  file_ = quern::File(path, O_WRONLY | O_APPEND);
  quern::check(file_.is_open(), "train", "{}: expected a writable file, got: {}", path,
               quern::File::reason());
}

void RunLog::add(int64_t epoch, int64_t step, double lr, const Tally& tally) {
  pending_ += fmt::format("{},{},{},{},{:.4f},{:.4f},{:.2f},{:.4f}\n", epoch, step, lr,
                          tally.mean_loss(), tally.top1_percent(), tally.top5_percent(),
                          tally.images_per_second(), tally.data_seconds);
  flush();
}

void RunLog::sync() {
  if (!pending_.empty()) flush();
  file_.sync();
}

void RunLog::flush() {
  const auto bytes = static_cast<int64_t>(pending_.size());
  if (file_.write(pending_.data(), bytes)) {
    bytes_ += bytes;
    pending_.clear();
    return;
  }
  if (!std::exchange(complained_, true))
    print_error(fmt::format("warning: {}: expected a writable file, got: {}: its lines wait", path_,
                            quern::File::reason()));
  // A line is there whole or not at all.
  if (::ftruncate(file_.descriptor(), bytes_) != 0) pending_.clear();
}

}  // namespace resnet50
