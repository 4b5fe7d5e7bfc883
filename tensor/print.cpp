// Tensors as text, by the rules of PyTorch's torch/_tensor_str.py, so that what is printed here and
// there may be compared by eye and by diff.
#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "quern/tensor/raw.h"

namespace quern {
namespace {

constexpr int64_t kThreshold = 1000;  // elements; of larger tensors
constexpr int64_t kEdge = 3;          // so many are shown at both ends of each dimension
constexpr size_t kLineWidth = 80;
constexpr std::string_view kPrefix = "tensor(";

/// An index that stands for those left out.
constexpr int64_t kLeftOut = -1;

/// The indices that are shown along a dimension.
std::vector<int64_t> shown(int64_t size, bool summarize) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    if (!summarize || size <= 2 * kEdge || i < kEdge || i >= size - kEdge) {
      indices.push_back(i);
    } else {
      indices.push_back(kLeftOut);
      i = size - kEdge - 1;
    }
  }
  return indices;
}

/// f(offset) of each element shown, in logical order; offsets from the first element.
template <class F>
void for_each_shown(const Tensor& t, bool summarize, const F& f, int d = 0, int64_t offset = 0) {
  if (d == t.dim()) return f(offset);
  for (int64_t i : shown(t.shape()[d], summarize))
    if (i != kLeftOut) for_each_shown(t, summarize, f, d + 1, offset + i * t.strides()[d]);
}

/// Elements as text and the least width that they are given.
struct Texts {
  std::vector<std::string> texts;
  size_t width = 1;
};

/// How numbers are written: as they would be in "{:.4f}", "{:.4e}" or, where all are whole,
/// "{:.0f}.". Zeros, infinities and NaNs have no say in it, nor in the width.
Texts floating_texts(const std::vector<double>& values) {
  const auto counts = [](double v) { return std::isfinite(v) && v != 0; };
  double least = INFINITY, most = 0;
  bool whole = true;
  for (const double v : values) {
    if (!counts(v)) continue;
    least = std::min(least, std::abs(v));
    most = std::max(most, std::abs(v));
    whole = whole && v == std::ceil(v);
  }
  const bool scientific = most > 0 && (most / least > 1000 || most > 1e8 || least < 1e-4);
  Texts result;
  for (const double v : values) {
    std::string text;
    if (std::isnan(v)) text = "nan";  // whatever its sign
    else if (scientific) text = fmt::format("{:.4e}", v);
    else if (!whole) text = fmt::format("{:.4f}", v);
    else text = fmt::format("{:.0f}{}", v, std::isinf(v) ? "" : ".");
    if (counts(v)) result.width = std::max(result.width, text.size());
    result.texts.push_back(std::move(text));
  }
  return result;
}

/// Of the elements shown, in logical order.
Texts texts_of(const Tensor& t, bool summarize) {
  return visit_dtype(t.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto* data = static_cast<const T*>(t.data_ptr());
    if constexpr (is_floating(dtype_of<T>)) {
      std::vector<double> values;
      for_each_shown(t, summarize, [&](int64_t at) { values.push_back(data[at]); });
      return floating_texts(values);
    } else {
      Texts result;
      for_each_shown(t, summarize, [&](int64_t at) {
        if constexpr (std::is_same_v<T, bool>) result.texts.push_back(data[at] ? "True" : "False");
        else result.texts.push_back(fmt::format("{}", data[at]));
        result.width = std::max(result.width, result.texts.back().size());
      });
      return result;
    }
  });
}

/// Lays the texts out in brackets.
class Layout {
 public:
  Layout(const Tensor& t, bool summarize)
      : shape_(t.shape()), summarize_(summarize), elements_(texts_of(t, summarize)) {}

  std::string text() {
    write(0);
    return std::move(out_);
  }

 private:
  void write_element() {
    fmt::format_to(std::back_inserter(out_), "{:>{}}", elements_.texts[next_++], elements_.width);
  }
  void write_line_break(int lines, int d) {
    out_.append(",").append(static_cast<size_t>(lines), '\n');
    out_.append(kPrefix.size() + static_cast<size_t>(d) + 1, ' ');
  }
  /// What dimensions d and further hold, for one index of those before.
  void write(int d) {
    const int rank = shape_.size();
    if (d == rank) return write_element();
    const bool last = d == rank - 1;
    const size_t room = kLineWidth - kPrefix.size() - static_cast<size_t>(d);
    const size_t per_line = std::max<size_t>(1, room / (elements_.width + 2));
    out_ += '[';
    size_t i = 0;
    for (const int64_t index : shown(shape_[d], summarize_)) {
      if (i > 0 && last && i % per_line != 0) out_ += ", ";
      else if (i > 0) write_line_break(last ? 1 : rank - d - 1, d);
      if (index == kLeftOut) out_ += last ? " ..." : "...";
      else write(d + 1);
      ++i;
    }
    out_ += ']';
  }

  const Shape shape_;
  const bool summarize_;
  const Texts elements_;
  size_t next_ = 0;
  std::string out_;
};

constexpr std::string_view pytorch_name(DType dtype) {
  constexpr std::string_view names[] = {"bool",    "uint8",    "int32",   "int64",
                                        "float16", "bfloat16", "float32", "float64"};
  return names[static_cast<size_t>(dtype)];
}

/// What cannot be seen from the elements.
std::vector<std::string> suffixes_of(const Tensor& t) {
  std::vector<std::string> suffixes;
  const DType dtype = t.dtype();
  const bool seen = t.numel() > 0 && (dtype == DType::i64 || dtype == DType::boolean);
  if (t.numel() == 0 && t.dim() != 1)
    suffixes.push_back(fmt::format("size=({})", fmt::join(t.shape(), ", ")));
  if (dtype != DType::f32 && !seen)
    suffixes.push_back(fmt::format("dtype=torch.{}", pytorch_name(dtype)));
  if (t.autograd() != nullptr)
    if (std::string history = t.autograd()->describe(); !history.empty())
      suffixes.push_back(std::move(history));
  return suffixes;
}

}  // namespace

namespace {

/// As a tensor's elements are printed behind `name`, on a line of their own.
std::string part_of_sparse(std::string_view name, const Tensor& t) {
  std::string text = t.numel() == 0 ? "[]" : Layout(t, t.numel() > kThreshold).text();
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; ++at)
    text.insert(at + 1, kPrefix.size() + name.size() + 1, ' ');
  if (t.numel() == 0) text += fmt::format(", size=({})", fmt::join(t.shape(), ", "));
  return fmt::format("{}=tensor({}),\n{:{}}", name, text, "", kPrefix.size());
}

}  // namespace

std::string to_string(const Tensor& t) {
  if (!t.defined()) return "undefined";
  if (t.is_sparse())
    return fmt::format(
        "{}{}{}size=({}), nnz={}{}, layout=torch.sparse_coo)", kPrefix,
        part_of_sparse("indices", raw::unsqueeze(t.rows(), 0)),
        part_of_sparse("values", t.values()), fmt::join(t.shape(), ", "), t.rows().numel(),
        t.dtype() == DType::f32 ? std::string()
                                : fmt::format(", dtype=torch.{}", pytorch_name(t.dtype())));
  std::string text(kPrefix);
  text += t.numel() == 0 ? "[]" : Layout(t, t.numel() > kThreshold).text();
  const size_t line_break = text.rfind('\n');
  size_t line = line_break == text.npos ? text.size() + 2 : text.size() - line_break + 1;
  for (const std::string& suffix : suffixes_of(t)) {
    if (line + suffix.size() + 2 > kLineWidth) {
      text.append(",\n").append(kPrefix.size(), ' ').append(suffix);
      line = kPrefix.size() + suffix.size();
    } else {
      text.append(", ").append(suffix);
      line += suffix.size() + 2;
    }
  }
  return text.append(")");
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << to_string(t); }

}  // namespace quern
