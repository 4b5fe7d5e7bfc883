#include "quern/ops/detail/row_groups.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

constexpr int kDigitBits = 11;  // 16 KiB of counts stay in a first-level cache
constexpr int64_t kDigits = int64_t{1} << kDigitBits;
constexpr int64_t kChunk = 1 << 14;  // keys that are counted together
// So many rows a place at most have a bit each: 32 bytes, twice what sorting takes.
constexpr int64_t kRowsAPlace = 256;

/// One pass of a radix sort: `to` has the keys of `from` by their digit at `shift`, those of the
/// same digit in their order.
void sort_by_digit(const uint64_t* from, uint64_t* to, int64_t n, int shift) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  const Workspace counts(chunks * kDigits * static_cast<int64_t>(sizeof(int64_t)));
  const auto of_chunk = [&](int64_t begin) {
    return counts.as<int64_t>() + begin / kChunk * kDigits;
  };
  const auto digit = [=](uint64_t key) { return key >> shift & (kDigits - 1); };
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    int64_t* const count = of_chunk(begin);
    std::fill_n(count, kDigits, 0);
    for (int64_t i = begin; i < end; ++i) ++count[digit(from[i])];
  });
  int64_t at = 0;  // counts become the places that each chunk's keys begin at
  for (int64_t d = 0; d < kDigits; ++d)
    for (int64_t c = 0; c < chunks; ++c)
      at += std::exchange(counts.as<int64_t>()[c * kDigits + d], at);
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    int64_t* const place = of_chunk(begin);
    for (int64_t i = begin; i < end; ++i) to[place[digit(from[i])]++] = from[i];
  });
}

int bits_below(int64_t n) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 1) - 1)));
}

/// Which of `rows` rows, a bit each.
class RowSet {
 public:
  explicit RowSet(int64_t rows) : words_((rows + 63) / 64 * 8) {
    std::fill_n(words_.as<uint64_t>(), (rows + 63) / 64, uint64_t{0});
  }
  bool has(int64_t row) const { return words_.as<uint64_t>()[row / 64] >> row % 64 & 1; }
  /// False if it was there.
  bool add(int64_t row) {
    uint64_t& word = words_.as<uint64_t>()[row / 64];
    const uint64_t before = word;
    word = before | uint64_t{1} << row % 64;
    return word != before;
  }

 private:
  Workspace words_;
};

/// Are they few enough for a bit each beside this list?
bool have_bits(int64_t rows, const Tensor& indices) {
  return rows / kRowsAPlace <= indices.numel();
}

/// `groups` has at least the rows that are named several times.
RowGroups in_order_of_list(const RowGroups& groups, const Tensor& indices) {
  constexpr int64_t kAlone = -1, kLater = -2;
  const int64_t n = indices.numel();
  const int64_t unique = n - groups.places.numel() + groups.rows.numel();
  const int64_t* const index = indices.data<int64_t>();
  const int64_t *begins = groups.offsets.data<int64_t>(), *places = groups.places.data<int64_t>();
  const Workspace marks(n * 8);  // of a place: what it is in its group, or of several the first
  int64_t* const mark = marks.as<int64_t>();
  std::fill_n(mark, n, kAlone);
  for (int64_t s = 0; s < groups.rows.numel(); ++s) {
    if (begins[s + 1] - begins[s] == 1) continue;
    mark[places[begins[s]]] = s;
    for (int64_t i = begins[s] + 1; i < begins[s + 1]; ++i) mark[places[i]] = kLater;
  }

  const RowGroups ordered{empty({unique}, DType::i64), empty({unique + 1}, DType::i64),
                          empty({n}, DType::i64)};
  int64_t *row = ordered.rows.out<int64_t>(), *begin = ordered.offsets.out<int64_t>();
  int64_t* const first = ordered.places.out<int64_t>();
  int64_t* place = first;
  for (int64_t i = 0; i < n; ++i) {
    if (mark[i] == kLater) continue;
    *row++ = index[i];
    *begin++ = place - first;
    if (mark[i] == kAlone) *place++ = i;
    else place = std::copy(places + begins[mark[i]], places + begins[mark[i] + 1], place);
  }
  *begin = n;
  return ordered;
}

/// Those groups that have several places.
RowGroups group_repeated(const Tensor& indices, int64_t rows) {
  const int64_t n = indices.numel();
  const int64_t* const index = indices.data<int64_t>();
  RowSet named(rows), repeated(rows);
  int64_t several = 0;
  for (int64_t i = 0; i < n; ++i)
    if (!named.add(index[i])) several += 1 + repeated.add(index[i]);  // and the first place
  const Tensor list = empty({several}, DType::i64), at = empty({several}, DType::i64);
  int64_t* const place = at.out<int64_t>();
  for (int64_t i = 0, k = 0; k < several; ++i) {
    if (!repeated.has(index[i])) continue;
    list.out<int64_t>()[k] = index[i];
    place[k++] = i;
  }
  const RowGroups groups = group_rows(list, rows);
  for (int64_t& p : std::span(groups.places.out<int64_t>(), static_cast<size_t>(several)))
    p = place[p];
  return groups;
}

/// indices[i] as a number below `count`, the same for the same row.
struct Names {
  Tensor names;
  int64_t count;
};
Names names_of_rows(const Tensor& indices, int64_t rows) {
  if (have_bits(rows, indices)) return {indices, rows};
  const RowGroups groups = group_rows(indices, rows);
  const Tensor names = empty_like(indices);
  const int64_t *begins = groups.offsets.data<int64_t>(), *places = groups.places.data<int64_t>();
  for (int64_t s = 0; s < groups.rows.numel(); ++s)
    for (int64_t i = begins[s]; i < begins[s + 1]; ++i) names.out<int64_t>()[places[i]] = s;
  return {names, groups.rows.numel()};
}

}  // namespace

Tensor check_indices(std::string_view op, const Tensor& indices, int64_t rows) {
  check(indices.defined() && indices.dtype() == DType::i64, op,
        "indices: expected an i64 tensor, got {}", indices);
  const Tensor dense = raw::contiguous(indices);
  const int64_t* index = dense.data<int64_t>();
  const auto outside = [=](int64_t i) {
    return static_cast<uint64_t>(i) >= static_cast<uint64_t>(rows);
  };
  parallel_chunks(dense.numel(), kChunk, [&](int64_t begin, int64_t end) {
    const int64_t* const wrong = std::find_if(index + begin, index + end, outside);
    if (wrong != index + end)
      fail(op, fmt::format("indices: expected 0..{}, got {} as element {}", rows - 1, *wrong,
                           wrong - index));
  });
  return dense;
}

RowGroups group_rows(const Tensor& indices, int64_t rows) {
  const int64_t n = indices.numel();
  const int64_t* index = indices.data<int64_t>();
  // A key is a row, and below it the place: keys begin in the order of their places.
  const int place_bits = bits_below(n), bits = place_bits + bits_below(rows);
  check(bits <= 64, "group_rows", "indices: expected less than 2^{} of {} rows, got {}",
        64 - bits_below(rows), rows, n);
  const uint64_t place_of = (uint64_t{1} << place_bits) - 1;
  const Workspace first(n * 8), second(n * 8);
  uint64_t *keys = first.as<uint64_t>(), *other = second.as<uint64_t>();
  parallel_chunks(n, kChunk, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      keys[i] = static_cast<uint64_t>(index[i]) << place_bits | static_cast<uint64_t>(i);
  });
  for (int shift = place_bits; shift < bits; shift += kDigitBits) {
    sort_by_digit(keys, other, n, shift);
    std::swap(keys, other);
  }

  const auto row = [=](int64_t i) { return static_cast<int64_t>(keys[i] >> place_bits); };
  int64_t unique = n > 0;
  for (int64_t i = 1; i < n; ++i) unique += row(i) != row(i - 1);
  const RowGroups groups{empty({unique}, DType::i64), empty({unique + 1}, DType::i64),
                         empty({n}, DType::i64)};
  int64_t *const of = groups.rows.out<int64_t>(), *const begins = groups.offsets.out<int64_t>();
  int64_t* const places = groups.places.out<int64_t>();
  int64_t s = 0;
  for (int64_t i = 0, last = -1; i < n; ++i) {
    places[i] = static_cast<int64_t>(keys[i] & place_of);
    if (row(i) == last) continue;
    of[s] = last = row(i);
    begins[s++] = i;
  }
  begins[s] = n;
  return groups;
}

RowGroups group_in_order(const Tensor& indices, int64_t rows) {
  return in_order_of_list(
      have_bits(rows, indices) ? group_repeated(indices, rows) : group_rows(indices, rows),
      indices);
}

LastPlaces last_places(const Tensor& indices, int64_t rows) {
  const int64_t n = indices.numel();
  const int64_t* const index = indices.data<int64_t>();
  const auto [names, count] = names_of_rows(indices, rows);
  const int64_t* const name = names.data<int64_t>();
  RowSet later(count);
  const LastPlaces all{empty({n}, DType::i64), empty({n}, DType::i64)};
  int64_t *const place = all.places.out<int64_t>(), *const row = all.rows.out<int64_t>();
  int64_t first = n;  // of those that are filled, from the back
  for (int64_t i = n - 1; i >= 0; --i) {
    place[first - 1] = i;
    row[first - 1] = index[i];
    first -= later.add(name[i]);
  }
  return {raw::slice(all.places, 0, first, n), raw::slice(all.rows, 0, first, n)};
}

}  // namespace quern::detail
