// What a strip's tiles become, 32 columns of a row at a time: whole cache lines of bf16.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/gemm/strip.h"
#include "quern/ops/kernels/gemm/tiles/epilogue_avx512.h"

namespace quern::kernels {
namespace {

/// Rows is F32Rows or Bf16Rows: of the outputs, the residual and x.
template <class Rows>
class StripOutputs {
 public:
  template <Epilogue::Kind kKind>
  static void complete(const SummedTile& tile, int64_t begin, int64_t end) {
    using Kind = Epilogue::Kind;
    const StripOutputs outputs(tile, begin, end);
    if constexpr (kKind == Kind::store) outputs.store();
    else if constexpr (kKind == Kind::activate) outputs.activate();
    else if constexpr (kKind == Kind::moments) outputs.moments();
    else outputs.gradient();
  }

 private:
  using Item = typename Rows::Item;

  StripOutputs(const SummedTile& tile, int64_t begin, int64_t end)
      : tile_(tile), f_(*tile.epilogue), begin_(begin), end_(end), in_(tile.n) {}

  __attribute__((always_inline)) Columns load(const Item* row) const {
    return {Rows::load(in_.lo, row), Rows::load(in_.hi, row + 16)};
  }
  /// Of an array with an element a column.
  Columns columns(const void* array) const {
    const auto* p = static_cast<const float*>(array) + tile_.column;
    return {F32Rows::load(in_.lo, p), F32Rows::load(in_.hi, p + 16)};
  }
  void add_up(Columns first, Columns second) const {
    F32Rows::store(in_, static_cast<float*>(f_.first) + tile_.column, first);
    F32Rows::store(in_, static_cast<float*>(f_.second) + tile_.column, second);
  }
  /// The tile's part of the epilogue's out, residual or x.
  template <class T>
  T* of(T* tensor) const {
    return tensor == nullptr ? nullptr : tensor + tile_.tile->out + tile_.column;
  }
  const Item* residual() const { return of(static_cast<const Item*>(f_.residual)); }

  /// out = value(its sums, how far its row is from the first) for all rows.
  template <class F>
  __attribute__((always_inline)) void each_row(F value) const {
    Item* const out = of(static_cast<Item*>(f_.out));
    for (int64_t i = begin_; i < end_; ++i) {
      const StripRow row = tile_.tile->rows[i];
      const float* sums = tile_.sums + row.row * kNr;
      Rows::store(in_, out + row.to,
                  value(Columns{_mm512_load_ps(sums), _mm512_load_ps(sums + 16)}, row.to));
    }
  }

  void store() const {
    const auto same = [](Columns v, int64_t) __attribute__((always_inline)) { return v; };
    each_row(same);
  }

  void activate() const {
    const auto with = [&](auto activation) __attribute__((always_inline)) {
      const Columns shift = columns(f_.map.shift);
      const Item* const residual = this->residual();
      const auto activated = [&](Columns v, int64_t to) __attribute__((always_inline)) {
        v = v + shift;
        if (residual) v = v + load(residual + to);
        return activation(v);
      };
      each_row(activated);
    };
    const auto curve = [&](Columns v) -> Columns {
      const auto half = [&](__m512 x) -> __m512 { return activated(Vec<float>(x), f_.activation); };
      return {half(v.lo), half(v.hi)};
    };
    if (only_clamps(f_.activation)) with(Clamp(f_.activation));
    else with(curve);
  }

  void moments() const {
    const Columns center = columns(f_.map.center);
    Columns first = columns(f_.first), second = columns(f_.second);
    const auto summed = [&](Columns v, int64_t) __attribute__((always_inline)) {
      const Columns distance = v - center;
      first = first + distance;
      second = fma(distance, distance, second);
      return v;
    };
    each_row(summed);
    add_up(first, second);
  }

  void gradient() const {
    const Columns center = columns(f_.map.center), scale = columns(f_.map.scale),
                  shift = columns(f_.map.shift);
    Columns first = columns(f_.first), second = columns(f_.second);
    const Item *const xs = of(static_cast<const Item*>(f_.x)), *const residual = this->residual();
    const Passed passed(f_.map.activation);
    const bool curved = !only_clamps(f_.map.activation);
    const auto bent = [&](__m512 dz, __m512 z) -> __m512 {
      return through(Vec<float>(dz), Vec<float>(z), f_.map.activation);
    };
    const auto masked = [&](Columns v, int64_t to) __attribute__((always_inline)) {
      if (residual) v = v + load(residual + to);
      const Columns distance = load(xs + to) - center, z = fma(distance, scale, shift);
      v = curved ? Columns{bent(v.lo, z.lo), bent(v.hi, z.hi)}
                 : Columns{passed(v.lo, z.lo), passed(v.hi, z.hi)};
      first = first + v;
      second = fma(v, distance, second);
      return v;
    };
    each_row(masked);
    add_up(first, second);
  }

  const SummedTile& tile_;
  const Epilogue& f_;
  const int64_t begin_, end_;
  const InColumns in_;
};

struct Avx512StripEpilogue {
  static CompleteOutputs* of(const Epilogue& f) {
    return f.wide ? of_rows<F32Rows>(f.kind) : of_rows<Bf16Rows>(f.kind);
  }
  static void prefetch(const void* line) {
    _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
  }

 private:
  template <class Rows>
  static CompleteOutputs* of_rows(Epilogue::Kind kind) {
    using Kind = Epilogue::Kind;
    using Outputs = StripOutputs<Rows>;
    switch (kind) {
      case Kind::store: return Outputs::template complete<Kind::store>;
      case Kind::activate: return Outputs::template complete<Kind::activate>;
      case Kind::moments: return Outputs::template complete<Kind::moments>;
      case Kind::gradient: return Outputs::template complete<Kind::gradient>;
    }
    return nullptr;
  }
};

}  // namespace
}  // namespace quern::kernels
