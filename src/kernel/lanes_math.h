// exp, exp2 and tanh of sixteen lanes, one definition for every instruction set (a Lanes type L is
// LanesPortable, LanesAvx2 or LanesAvx512). Polynomials are minimax fits of relative error,
// coefficients rounded to float, evaluated by Horner's rule with fused multiply-adds. NaN gives NaN.
//
// Ownership: values. Threads: any. Errors: none.
// Design:    docs/format/numerics_attention.md
#pragma once

#include <cstdint>

namespace reprise {

// Adding it rounds to an integer and leaves that integer plus 127, the exponent's bias, in the low
// bits. REQUIRES: |x| < 2^21.
inline constexpr float kRoundAndBias = 0x1.8p23f + 127.0f;

template <class L, uint32_t N>
[[gnu::always_inline]] inline L Polynomial(L x, const float (&coefficients)[N]) {
  L sum = L::Set(coefficients[N - 1]);
  for (uint32_t i = N - 1; i-- > 0;) sum = L::Fma(sum, x, L::Set(coefficients[i]));
  return sum;
}

// e^x, within 1 ulp; Inf above 88.7, denormals and 0 below -87.3.
template <class L>
[[gnu::always_inline]] inline L Exp(L x) {
  constexpr float kCoefficients[] = {
      1.0f, 1.0f, 4.999999404e-01f, 1.666652113e-01f, 4.166826233e-02f, 8.368670940e-03f, 1.382104121e-03f};
  x = L::Max(L::Set(-150.0f), L::Min(L::Set(130.0f), x));
  const L bias = L::Set(kRoundAndBias);
  const L n = L::Sub(L::Fma(x, L::Set(1.442695022e+00f), bias), bias);
  L r = L::Fma(n, L::Set(-6.931471825e-01f), x);  // ln 2 in two parts
  r = L::Fma(n, L::Set(1.904654212e-09f), r);
  // 2^n in two factors, so that n from -217 to 188 works and a denormal is rounded once.
  const L half = L::Fma(n, L::Set(0.5f), bias);
  const L rest = L::Add(L::Sub(n, L::Sub(half, bias)), bias);
  return L::Mul(L::Mul(Polynomial(r, kCoefficients), L::ExponentFromLowBits(half)), L::ExponentFromLowBits(rest));
}

// 2^x for x <= 0, and exactly 0 below -126.5: the weight of a score that is x below the maximum. There
// the power's exponent field is 0, so no comparison is needed.
template <class L>
[[gnu::always_inline]] inline L Exp2Weight(L x) {
  constexpr float kCoefficients[] = {
      1.0f, 6.931471825e-01f, 2.402264774e-01f, 5.550359562e-02f, 9.618499316e-03f, 1.339097158e-03f, 1.532932511e-04f};
  const L bias = L::Set(kRoundAndBias);
  x = L::Max(L::Set(-127.0f), x);
  const L t = L::Add(x, bias);
  const L r = L::Sub(x, L::Sub(t, bias));
  return L::Mul(Polynomial(r, kCoefficients), L::ExponentFromLowBits(t));
}

// Within 2 ulp.
template <class L>
[[gnu::always_inline]] inline L Tanh(L x) {
  constexpr float kCoefficients[] = {-3.333328068e-01f, 1.333141327e-01f, -5.373757333e-02f, 2.063272335e-02f,
                                     -5.698400084e-03f};
  const L magnitude = L::Abs(x);
  const L square = L::Mul(x, x);
  const L small = L::Fma(L::Mul(Polynomial(square, kCoefficients), square), x, x);
  const L one = L::Set(1.0f);
  const L large = L::Sub(one, L::Div(L::Set(2.0f), L::Add(Exp(L::Add(magnitude, magnitude)), one)));
  return L::SelectLess(magnitude, L::Set(0.625f), small, L::CopySign(large, x));
}

}  // namespace reprise
