// The epilogue of AMX's strips against the plain one, on data whose sums are exact.
#include "kernels/strip_epilogue.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "built_isa.h"
#include "kernels/amx_emulation.h"

using namespace quern;
using namespace quern::kernels;
using Kind = Epilogue::Kind;

#ifdef QUERN_HAS_STRIP_EPILOGUE
namespace {

/// A strip's outputs of Item, 5 rows of kStride, of which one tile completes some, from its second
/// column on; and all that its epilogue reads.
template <class Item>
class Strip {
 public:
  static constexpr int64_t kStride = 40, kColumn = 3, kRows = 5;

  explicit Strip(bool residual) {
    std::mt19937 random(7);
    const auto fill = [&](auto& values) {
      using T = std::remove_cvref_t<decltype(values[0])>;
      for (T& v : values) v = static_cast<T>(static_cast<float>(random() % 17) - 8);
    };
    fill(sums), fill(out), fill(residual_), fill(x);
    for (auto* array : {&center, &scale, &shift, &first, &second}) fill(*array);
    epilogue.out = out.data(), epilogue.x = x.data();
    if (residual) epilogue.residual = residual_.data();
    epilogue.map = {center.data(), scale.data(), shift.data()};
    epilogue.first = first.data(), epilogue.second = second.data();
    epilogue.wide = std::is_same_v<Item, float>;
  }

  void complete(CompleteOutputs* complete, int64_t n) {
    // Rows over whose ends the tile ran: its second and fourth are no outputs.
    const StripRow rows[] = {{0, 0}, {2, kStride}, {4, 3 * kStride}};
    const StripTile tile{.a = 0, .out = 2, .m = 5, .rows = rows, .outputs = 3};
    const SummedTile summed{
        .sums = sums.data(), .tile = &tile, .epilogue = &epilogue, .column = kColumn, .n = n};
    complete(summed, 0, 1);
    complete(summed, 1, 3);
  }

  Epilogue epilogue;
  std::vector<Item> out = std::vector<Item>(kRows * kStride);
  std::vector<float> first = std::vector<float>(kStride), second = first;

 private:
  alignas(64) std::array<float, kRows * 32> sums;
  std::vector<Item> residual_ = out, x = out;
  std::vector<float> center = first, scale = first, shift = first;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Within the rounding of Item, and that of a few operations in f32.
template <class Item>
bool close(const std::vector<Item>& a, const std::vector<Item>& b) {
  const float bound = std::is_same_v<Item, float> ? 1e-6f : 0x1p-8f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float x = a[i], y = b[i];
    if (!(std::abs(x - y) <= bound * std::max(1.0f, std::abs(y)))) return false;
  }
  return true;
}

template <class Item>
void check_kind(Kind kind, Activation activation, bool residual, int64_t n) {
  Strip<Item> strip(residual), expected(residual);
  for (Strip<Item>* each : {&strip, &expected}) {
    each->epilogue.kind = kind;
    each->epilogue.activation = activation, each->epilogue.map.activation = activation;
  }
  strip.complete(test::avx512_strip_epilogue(strip.epilogue), n);
  expected.complete(test::PlainFinish::of(expected.epilogue), n);
  CAPTURE(kind);
  CAPTURE(activation);
  CAPTURE(residual);
  CAPTURE(n);
  if (only_clamps(activation)) {
    CHECK(same_bits(strip.out, expected.out));
    CHECK(same_bits(strip.first, expected.first));
    CHECK(same_bits(strip.second, expected.second));
  } else {
    CHECK(close(strip.out, expected.out));
    CHECK(close(strip.first, expected.first));
    CHECK(close(strip.second, expected.second));
  }
}

}  // namespace

TEST_CASE("AMX's strips are completed as by plain loops, and nothing beside them is written") {
  if (!cpu_has(Isa::avx512_bf16)) {
    MESSAGE("skipped: ", why_disabled(Isa::avx512_bf16));
    return;
  }
  for (const Kind kind : {Kind::store, Kind::activate, Kind::moments, Kind::gradient})
    for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6,
                                        Activation::silu, Activation::hardswish})
      for (const bool residual : {false, true})
        for (const int64_t n : {1, 15, 16, 17, 31, 32}) {
          check_kind<float>(kind, activation, residual, n);
          check_kind<bfloat16>(kind, activation, residual, n);
        }
}
#endif
