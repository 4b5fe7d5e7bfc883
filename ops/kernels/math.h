// exp, log, tanh, pow and the normal distribution of vectors of floats, within 2 ULP (exp and log:
// 1) of the exact value where it is a normal number, without branches. Numbers below the normal
// range count as zero. Polynomials are minimax fits (Lawson's iteration on Chebyshev nodes; the
// coefficients rounded to f32 one by one, the rest refitted). Numbers that need more bits than a
// float has are sums hi + lo. The order of roundings is told by fused(), so that it is the same
// wherever an element lies.
// Included by files with ISA flags, so all of it has internal linkage.
#pragma once
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

struct Math {
  using F = Vec<float>;
  using B = F::batch_bool_type;

  static F exp(F x) { return exp_of({bounded(x, -105.0f, 89.0f), F(0.0f)}); }
  /// The same for what is rounded to the 8 bits of bf16: to 47 f32 roundoffs, and 1.5·|x| by that
  /// of the exponent; 1% of half a bf16 ULP.
  static F rough_exp(F x) { return rough_power_of_2(bounded(x, -105.0f, 89.0f) * F(1.44269504f)); }

  /// exp(-x) to 2 roundoffs in four fifths of the operations, for 1/(1 + exp(-x)): 2^n·2^r with
  /// |r| <= ½, 2^r = 1 + r·P(r) to 0.05. No product with log2 e is rounded, so it takes an fma.
  /// Where registers are permuted, two of them hold 2^(i/16), hi + lo, n is in 16ths, and |r| <=
  /// 1/32: P has half of the terms.
  static F exp_of_minus(F x) {
#if defined(__FMA__) || defined(__ARM_NEON)
    const F log2_e(1.44269502f), rest(1.92596299e-8f), magic(kExponents);
    const F limited = bounded(x, -89.0f, 105.0f);
    const F shifted = fused_minus(limited, log2_e, magic), n = shifted - magic;
    const F r = fused_minus(limited, rest, fused_minus(limited, log2_e, -n));
#ifdef __AVX512F__
    const Sum root = root_of(shifted);
    const F p = polynomial(r, 0.693147181f, 0.24023355f, 0.0555041087f);
    return scaled(root.hi + fused(root.hi * r, p, root.lo), n, shifted);
#else
    const F p = polynomial(r, 0.693147182f, 0.240226477f, 0.0555035993f, 0.00961850584f,
                           0.00133908074f, 0.0001532647f);
    return scaled(fused(r, p, F(1.0f)), n, shifted);
#endif
#else
    return exp(-x);
#endif
  }

  /// Of 2^e·(1 + f), 1 + f in √½ ... √2: e·log 2 + f - f²/2 + f³·P(f), to 0.1 roundoffs.
  static F log(F x) {
    const Split s = split(x, 0x3f3504f3);
    const F f = s.m - F(1.0f), z = f * f;
    const F p = polynomial(f, -0.5f, 0.333333313f, -0.250008196f, 0.200012416f, -0.166234091f,
                           0.1420158f, -0.131596103f, 0.127622172f, -0.0763643906f);
    const F y = fused(s.e, F(kLn2), f + fused(z, p, s.e * F(kLn2Rest)));
    const F positive = xsimd::select(x < F(kInfinity), y, x);  // NaN is not less
    const F or_less = xsimd::select(x < F(kSmallest), F(-kInfinity), positive);
    return xsimd::select(x <= F(-kSmallest), F(kNaN), or_less);
  }

  /// 1 - 2/(exp(2|x|) + 1), and below 0.55, where that cancels, x + x³·P(x²) to 0.02 roundoffs.
  static F tanh(F x) {
    const F size = xsimd::min(F(9.1f), xsimd::abs(x));  // beyond, it is 1 rounded; NaN stays
    const F large = F(1.0f) - quotient(F(2.0f), exp_of({size + size, F(0.0f)}) + F(1.0f));
    const F z = size * size;
    const F p =
        polynomial(z, -0.333333164f, 0.133325458f, -0.0538478494f, 0.0210524723f, -0.00624599261f);
    const F small = fused(size * z, p, size);
    return xsimd::select(size < F(0.55f), small, large) | (x & F(-0.0f));
  }

  /// Of the standard normal distribution: the probability of less than x, and exp(-x²/2), which is
  /// √2π times the density.
  struct Normal {
    F below, bell;
  };
  /// The tail is bell·Q(|x|), where Q, Mills' ratio / √2π, is v·P(v) with v = 2.9/(2.9 + |x|): to
  /// 0.4 roundoffs where the bell is a normal number; it is zero from 14.5 on.
  static Normal normal(F x) {
    const F size = xsimd::min(F(14.5f), xsimd::abs(x)), half = F(-0.5f) * size;
    const F power = half * size;
    const F bell = exp_of({power, product_error(half, size, power)});
    const F v = quotient(F(2.9f), F(2.9f) + size);
    const F ratio =
        v * polynomial(v, 0.137550011f, 0.137961775f, 0.117115498f, 0.112150043f, -0.0384291038f,
                       0.18864052f, -0.272124916f, 0.145538256f, -0.0284020919f);
    const F tail = bell * ratio;
    return {xsimd::select(x > F(0.0f), F(1.0f) - tail, tail), bell};
  }

  /// The same for what is rounded to the 8 bits of bf16, in half of the operations: to 160 f32
  /// roundoffs and 1.5·x², by those of the exponent; 1% of half a bf16 ULP. v = 3.2/(3.2 + |x|).
  static Normal rough_normal(F x) {
    const F size = xsimd::min(F(14.5f), xsimd::abs(x));
    const F bell = rough_power_of_2(size * size * F(-0.72134752f));  // -½ log2 e
    const F v = quotient(F(3.2f), F(3.2f) + size);
    const F ratio = v * polynomial(v, 0.124796942f, 0.122262381f, 0.129981115f, 0.0256924424f,
                                   0.169274896f, -0.0720107034f);
    const F tail = bell * ratio;
    return {xsimd::select(x > F(0.0f), F(1.0f) - tail, tail), bell};
  }

  static F pow(F x, F y) {
    const F size = xsimd::abs(x);
    const Sum log_x = log_of_normal(size);
    // Beyond ±2^32 it is one for 1 only, and zero or infinite; 0·inf would not be.
    const F finite = bounded(y, -0x1p32f, 0x1p32f);
    const F hi = finite * log_x.hi;
    const F lo = fused(finite, log_x.lo, product_error(finite, log_x.hi, hi));
    const F small_lo = xsimd::select(xsimd::abs(hi) < F(200.0f), lo, F(0.0f));
    F z = exp_of({bounded(hi, -105.0f, 89.0f), small_lo});

    const F magnitude = xsimd::abs(y);
    const F shift(0x1p23f);  // a sum of at least that has no fraction
    const B whole = (magnitude >= shift) | ((magnitude + shift) - shift == magnitude);
    const F half = F(0.5f) * magnitude;
    const B odd = whole & (magnitude < F(0x1p24f)) & ((half + shift) - shift != half);
    const B small = size < F(kSmallest), endless = size == F(kInfinity);
    const B to_zero = (small & (y > F(0.0f))) | (endless & (y < F(0.0f)));
    z = xsimd::select(small | endless, xsimd::select(to_zero, F(0.0f), F(kInfinity)), z);
    z = xsimd::select(odd, z | (x & F(-0.0f)), z);
    z = xsimd::select((x <= F(-kSmallest)) & (x > F(-kInfinity)) & !whole, F(kNaN), z);
    z = xsimd::select(xsimd::isnan(x) | xsimd::isnan(y), F(kNaN), z);
    return xsimd::select((x == F(1.0f)) | (y == F(0.0f)), F(1.0f), z);
  }

 private:
  static constexpr float kInfinity = __builtin_inff(), kNaN = __builtin_nanf("");
  static constexpr float kSmallest = 0x1p-126f;
  // ln 2 with its first 15 bits, so that its product with an exponent is exact, and the rest.
  static constexpr float kLn2 = 0.693145751953125f, kLn2Rest = 1.4286068e-6f;

  // Numbers near it are whole, and its last bits and theirs differ by the number.
  static constexpr float kMagic = 0x1.8p23f;

  // That of exp's exponents: whole ones, or 16ths where registers are permuted, of which two then
  // hold 2^(i/16) rounded, and what is left of it.
#ifdef __AVX512F__
  static constexpr float kExponents = 0x1.8p19f;
  alignas(64) static constexpr float kRoots[] = {
      1.0f,        1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f,
      1.29683959f, 1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
      1.68179286f, 1.75625217f, 1.8340081f,  1.91520655f};
  alignas(64) static constexpr float kRest[] = {
      0.0f,           4.83347016e-8f,  -1.30775399e-8f, 5.38622231e-8f,  3.79763527e-8f,
      4.4968381e-8f,  -4.01899953e-8f, -1.01233493e-8f, 2.4203235e-8f,   -4.50089885e-8f,
      8.07090483e-9f, 9.83621717e-9f,  -2.47553267e-8f, -9.23577037e-9f, -1.1239278e-8f,
      9.84532811e-9f};
#else
  static constexpr float kExponents = kMagic;
#endif

  struct Sum {
    F hi, lo;
  };
  template <class... Rest>
  static F polynomial(F x, float first, Rest... rest) {
    if constexpr (sizeof...(rest) == 0) return F(first);
    else return fused(polynomial(x, rest...), x, F(first));
  }

  /// x moved into low..high; a NaN stays.
  static F bounded(F x, float low, float high) {
    return xsimd::max(F(low), xsimd::min(F(high), x));
  }
  /// exp(hi + lo), hi in -105 ... 89, where it is zero and infinite: 2^n·exp(r), |r| <= ½ ln 2,
  /// exp(r) = 1 + r + r²·q(r) to 0.06 roundoffs. r is not rounded before it is added last. With n
  /// in 16ths, as exp_of_minus() has it, q has two terms, to 0.03.
  static F exp_of(Sum x) {
    const F magic(kExponents);
    const F shifted = fused(x.hi, F(1.44269504f), magic), n = shifted - magic;
    const F r_hi = fused_minus(n, F(kLn2), x.hi), r_lo = fused_minus(n, F(kLn2Rest), x.lo);
    const F r = r_hi + r_lo;
#ifdef __AVX512F__
    const Sum root = root_of(shifted);
    const F q = polynomial(r, 0.500016189f, 0.166666672f);
    return scaled(root.hi + fused(root.hi, r_hi + fused(r * r, q, r_lo), root.lo), n, shifted);
#else
    const F q =
        polynomial(r, 0.49999994f, 0.166665211f, 0.0416682735f, 0.00836868584f, 0.00138201355f);
    return scaled(F(1.0f) + (r_hi + fused(r * r, q, r_lo)), n, shifted);
#endif
  }
#ifdef __AVX512F__
  /// 2^(i/16), where i is the last four bits of `shifted`.
  static Sum root_of(F shifted) {
    const __m512i i = _mm512_castps_si512(shifted.data);
    return {_mm512_permutexvar_ps(i, _mm512_load_ps(kRoots)),
            _mm512_permutexvar_ps(i, _mm512_load_ps(kRest))};
  }
#endif
  /// 2^x as 2^n·2^r, |r| <= ½, where 2^r is a polynomial to 45 roundoffs.
  static F rough_power_of_2(F x) {
    const F shifted = x + F(kMagic), n = shifted - F(kMagic);
    return scaled(
        polynomial(x - n, 0.999999285f, 0.693121791f, 0.240247443f, 0.0559178591f, 0.00957009662f),
        n, shifted);
  }
  /// y·2^n for a whole n, which the last bits of `shifted` are.
  static F scaled(F y, [[maybe_unused]] F n, [[maybe_unused]] F shifted) {
#ifdef __AVX512F__
    return _mm512_scalef_ps(y.data, n.data);
#else
    const Words whole = (Words)shifted.data - (Words)F(kMagic).data;
    const Words half = whole >> 1;  // 2^n may be no number, 2^(n/2) is one
    const auto power_of_2 = [](Words k) { return F((F::register_type)((k + 127) << 23)); };
    return y * power_of_2(half) * power_of_2(whole - half);
#endif
  }

  /// x with the lower half of its digits zero.
  static F upper_half(F x) { return F((F::register_type)((Words)x.data & ~0xfff)); }
  /// a·b - ab, exactly, where ab is the rounded product.
  static F product_error(F a, F b, F ab) {
#if defined(__FMA__) || defined(__ARM_NEON)
    return fused(a, b, -ab);
#else
    const F a1 = upper_half(a), b1 = upper_half(b), a2 = a - a1, b2 = b - b1;
    return ((a1 * b1 - ab) + a1 * b2 + a2 * b1) + a2 * b2;  // Dekker, 1971
#endif
  }
  /// c - a·b, where it is small against c.
  static F exact_rest(F a, F b, F c) {
#if defined(__FMA__) || defined(__ARM_NEON)
    return fused_minus(a, b, c);
#else
    const F ab = a * b;
    return (c - ab) - product_error(a, b, ab);
#endif
  }

  /// a + b, where a is zero or not less than b but for the sign.
  static Sum sum_of(F a, F b) {
    const F hi = a + b;
    return {hi, (a - hi) + b};
  }

  /// A positive normal number as 2^e·m, where m is not less than the number of these bits and less
  /// than twice it.
  struct Split {
    F m, e;
  };
  static Split split(F x, int32_t least) {
    using Floats = Native<float, kLanes<float>>::type;
    const Words bits = (Words)x.data, exponent = (bits - least) >> 23;
    return {F((F::register_type)(bits - (exponent << 23))),
            F((F::register_type) __builtin_convertvector(exponent, Floats))};
  }

  /// log x to 2^-32 of itself for a positive normal number 2^e·m with m in 2^-¼ ... 2^¾: with
  /// s = (m - c)/(m + c), where c is 1 or nearly √2 so that |s| < 0.087,
  /// log x = e·log 2 + log c + 2·artanh s; artanh is odd, its polynomial good to 2^-37.
  static Sum log_of_normal(F x) {
    const auto [m, e] = split(x, 0x3f574000);
    const B upper = m > F(1.1892071f);
    const F c = xsimd::select(upper, F(1.4140625f), F(1.0f));
    const F log_c = xsimd::select(upper, F(0.346466064453125f), F(0.0f));  // of 15 bits
    const F log_c_rest = xsimd::select(upper, F(7.028931e-7f), F(0.0f));

    const F sum = m + c, sum_rest = m - (sum - c);
    const F inverse = quotient(F(1.0f), sum);
    const F s = (m - c) * inverse;
    const F s_rest = fused_minus(s, sum_rest, exact_rest(s, sum, m - c)) * inverse;
    const F z = s * s;
    const F cube = s * z * polynomial(z, 0.666666687f, 0.399984628f, 0.289088935f);
    const F whole = fused(e, F(kLn2), log_c);  // exact
    const Sum first = sum_of(whole, s + s);
    const F rest = fused(e, F(kLn2Rest), log_c_rest) + ((s_rest + s_rest) + cube);
    return sum_of(first.hi, first.lo + rest);
  }
};

}  // namespace
}  // namespace quern::kernels
