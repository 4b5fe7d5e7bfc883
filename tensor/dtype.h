// Names, sizes, promotion and C++ types of DType.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "quern/tensor/bfloat16.h"
#include "quern/tensor/check.h"
#include "quern/tensor/float16.h"
#include "quern/tensor/text_formatter.h"
#include "quern/tensor/types.h"

namespace quern {

/// "bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"
constexpr std::string_view to_string(DType dtype) {
  constexpr std::string_view names[] = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"};
  return names[static_cast<size_t>(dtype)];
}

/// Bytes of an element.
constexpr int64_t itemsize(DType dtype) {
  constexpr int64_t sizes[] = {1, 1, 4, 8, 2, 2, 4, 8};
  return sizes[static_cast<size_t>(dtype)];
}

/// f16, bf16, f32 or f64?
constexpr bool is_floating(DType dtype) { return dtype >= DType::f16; }

/// What sums of a floating dtype are kept in, and parameters beside it: f64 for f64, else f32.
constexpr DType accumulator(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The dtype of a binary op's result. DType is ordered so that this is the maximum, but for f16
/// with bf16, neither of which holds the other; an integer with a float takes the float's type
/// whatever their widths, as in PyTorch.
constexpr DType promote(DType a, DType b) {
  const bool halves = std::min(a, b) == DType::f16 && std::max(a, b) == DType::bf16;
  return halves ? DType::f32 : std::max(a, b);
}

/// Error of `op`, which computes in floating dtypes but f16.
[[noreturn]] inline void refuse_dtype(std::string_view op, DType dtype) {
  constexpr std::string_view storage = ", which is storage: to(DType::f32) or bf16 comes first";
  fail(op, fmt::format("dtype: expected bf16, f32 or f64, got {}{}", to_string(dtype),
                       dtype == DType::f16 ? storage : ""));
}

/// Error of `op`: it would compute in f16.
inline void check_computes(std::string_view op, DType dtype) {
  if (dtype == DType::f16) refuse_dtype(op, dtype);
}

/// dtype_of<float> == DType::f32
template <class T>
inline constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  else if constexpr (std::is_same_v<T, float16>) return DType::f16;
  else if constexpr (std::is_same_v<T, bfloat16>) return DType::bf16;
  else if constexpr (std::is_same_v<T, float>) return DType::f32;
  else {
    static_assert(std::is_same_v<T, double>, "no DType for this type");
    return DType::f64;
  }
}();

/// Calls f(std::type_identity<T>{}) with the C++ type of dtype.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::boolean: return f(std::type_identity<bool>{});
    case DType::u8: return f(std::type_identity<uint8_t>{});
    case DType::i32: return f(std::type_identity<int32_t>{});
    case DType::i64: return f(std::type_identity<int64_t>{});
    case DType::f16: return f(std::type_identity<float16>{});
    case DType::bf16: return f(std::type_identity<bfloat16>{});
    case DType::f32: return f(std::type_identity<float>{});
    case DType::f64: break;
  }
  return f(std::type_identity<double>{});
}

/// The same for the dtypes that ops compute in; any other, f16 too, is an error of `op`.
template <class F>
decltype(auto) visit_floating(std::string_view op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16: return f(std::type_identity<bfloat16>{});
    case DType::f32: return f(std::type_identity<float>{});
    case DType::f64: return f(std::type_identity<double>{});
    default: refuse_dtype(op, dtype);
  }
}

}  // namespace quern

template <>
struct fmt::formatter<quern::DType> : quern::TextFormatter<quern::DType> {};
