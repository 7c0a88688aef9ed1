// Sixteen fp32 lanes on every machine: one AVX-512 register, two AVX2 registers, or a plain array that the compiler
// vectorises. Kernels written on F16 have the same order of operations on all three.
//
// Include once a library and put PACELINE_EXPORT_ISA in one source file of the folder.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define PACELINE_API extern "C" __attribute__((visibility("default")))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define PACELINE_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__)
#define PACELINE_AVX2 1
#endif
#if defined(PACELINE_AVX512) && defined(__AVX512BF16__)
#define PACELINE_ISA 3
#elif defined(PACELINE_AVX512)
#define PACELINE_ISA 2
#elif defined(PACELINE_AVX2)
#define PACELINE_ISA 1
#else
#define PACELINE_ISA 0
#endif
#define PACELINE_EXPORT_ISA PACELINE_API int paceline_isa() { return PACELINE_ISA; }

typedef uint16_t bf16;

static inline float bf16_to_f32(bf16 x) {
  uint32_t u = uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Round to nearest even; NaN stays a quiet NaN (as torch does).
static inline bf16 f32_to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16(0x7fc0);
  return bf16((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Model dtype round trip: the value that torch would hold after storing x as T.
template <typename T> static inline float rounded(float x);
template <> inline float rounded<float>(float x) { return x; }
template <> inline float rounded<bf16>(float x) { return bf16_to_f32(f32_to_bf16(x)); }
static inline float to_f32(float x) { return x; }
static inline float to_f32(bf16 x) { return bf16_to_f32(x); }
static inline void from_f32(float& d, float x) { d = x; }
static inline void from_f32(bf16& d, float x) { d = f32_to_bf16(x); }

#if defined(PACELINE_AVX512)
struct F16 { __m512 v; };
static inline F16 f16_zero() { return {_mm512_setzero_ps()}; }
static inline F16 f16_set(float x) { return {_mm512_set1_ps(x)}; }
static inline F16 f16_load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline F16 f16_load(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
static inline void f16_store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline __m512i f16_bf16_bits(F16 a) {  // bf16 in the upper halves, lower halves not cleared
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc00000));
}
static inline void f16_store(bf16* p, F16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(f16_bf16_bits(a), 16)));
}
static inline F16 f16_to_bf16_and_back(F16 a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(f16_bf16_bits(a), _mm512_set1_epi32(int(0xffff0000u))))};
}
// 16 pairs (even, odd), as packed weights hold them.
static inline void f16_load_pairs(const bf16* p, F16& even, F16& odd) {
  const __m512i u = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(int(0xffff0000u))));
}
static inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 f16_fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a*b + c
static inline F16 f16_max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 f16_min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F16 f16_round(F16 a) { return {_mm512_roundscale_ps(a.v, 8)}; }
static inline F16 f16_pow2(F16 n) {  // 2^n for an integral n in [-126, 127]
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
#elif defined(PACELINE_AVX2)
struct F16 { __m256 a, b; };
static inline F16 f16_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F16 f16_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F16 f16_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline __m256 f16_half(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline F16 f16_load(const bf16* p) { return {f16_half(p), f16_half(p + 8)}; }
static inline void f16_store(float* p, F16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline __m256i f16_bf16_bits(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000), nan);
}
static inline void f16_store(bf16* p, F16 x) {
  const __m256i a = _mm256_srli_epi32(f16_bf16_bits(x.a), 16), b = _mm256_srli_epi32(f16_bf16_bits(x.b), 16);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}
static inline F16 f16_to_bf16_and_back(F16 x) {
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(f16_bf16_bits(x.a), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(f16_bf16_bits(x.b), upper))};
}
static inline void f16_load_pairs(const bf16* p, F16& even, F16& odd) {
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
  const __m256i u = _mm256_loadu_si256((const __m256i*)p), v = _mm256_loadu_si256((const __m256i*)(p + 16));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(u, upper)), _mm256_castsi256_ps(_mm256_and_si256(v, upper))};
}
static inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F16 f16_fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline F16 f16_max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F16 f16_min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F16 f16_round(F16 x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
static inline __m256 f16_pow2_half(__m256 n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
static inline F16 f16_pow2(F16 n) { return {f16_pow2_half(n.a), f16_pow2_half(n.b)}; }
#else
struct F16 { float v[16]; };
#define PACELINE_LANES(expr) F16 r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r
static inline F16 f16_zero() { PACELINE_LANES(0.f); }
static inline F16 f16_set(float x) { PACELINE_LANES(x); }
static inline F16 f16_load(const float* p) { PACELINE_LANES(p[i]); }
static inline F16 f16_load(const bf16* p) { PACELINE_LANES(bf16_to_f32(p[i])); }
static inline void f16_store(float* p, F16 a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
static inline void f16_store(bf16* p, F16 a) { for (int i = 0; i < 16; i++) p[i] = f32_to_bf16(a.v[i]); }
static inline F16 f16_to_bf16_and_back(F16 a) { PACELINE_LANES(bf16_to_f32(f32_to_bf16(a.v[i]))); }
static inline void f16_load_pairs(const bf16* p, F16& even, F16& odd) {
  for (int i = 0; i < 16; i++) even.v[i] = bf16_to_f32(p[2 * i]), odd.v[i] = bf16_to_f32(p[2 * i + 1]);
}
static inline F16 operator+(F16 a, F16 b) { PACELINE_LANES(a.v[i] + b.v[i]); }
static inline F16 operator-(F16 a, F16 b) { PACELINE_LANES(a.v[i] - b.v[i]); }
static inline F16 operator*(F16 a, F16 b) { PACELINE_LANES(a.v[i] * b.v[i]); }
static inline F16 operator/(F16 a, F16 b) { PACELINE_LANES(a.v[i] / b.v[i]); }
#ifdef __FP_FAST_FMAF
static inline F16 f16_fma(F16 a, F16 b, F16 c) { PACELINE_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
#else  // fmaf would be a library call
static inline F16 f16_fma(F16 a, F16 b, F16 c) { PACELINE_LANES(a.v[i] * b.v[i] + c.v[i]); }
#endif
static inline F16 f16_max(F16 a, F16 b) { PACELINE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline F16 f16_min(F16 a, F16 b) { PACELINE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline F16 f16_round(F16 a) { PACELINE_LANES(__builtin_nearbyintf(a.v[i])); }
static inline F16 f16_pow2(F16 n) {
  F16 r;
  for (int i = 0; i < 16; i++) {
    uint32_t u = uint32_t(int32_t(n.v[i]) + 127) << 23;
    std::memcpy(&r.v[i], &u, 4);
  }
  return r;
}
#undef PACELINE_LANES
#endif

// Sum of the lanes in one fixed order (halves of 8, 4, 2, 1: the same tree on every machine), and their maximum.
#if defined(PACELINE_AVX512) || defined(PACELINE_AVX2)
static inline float f16_sum8(__m256 a) {
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
static inline float f16_max8(__m256 a) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
#endif
#if defined(PACELINE_AVX512)
static inline float f16_sum(F16 a) {
  return f16_sum8(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
static inline float f16_hmax(F16 a) {
  return f16_max8(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
#elif defined(PACELINE_AVX2)
static inline float f16_sum(F16 a) { return f16_sum8(_mm256_add_ps(a.a, a.b)); }
static inline float f16_hmax(F16 a) { return f16_max8(_mm256_max_ps(a.a, a.b)); }
#else
static inline float f16_sum(F16 a) {
  for (int h = 8; h > 0; h >>= 1)
    for (int i = 0; i < h; i++) a.v[i] += a.v[i + h];
  return a.v[0];
}
static inline float f16_hmax(F16 a) {
  for (int i = 1; i < 16; i++) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
  return a.v[0];
}
#endif

static inline float f16_first(F16 a) {
  float t[16];
  f16_store(t, a);
  return t[0];
}

// Lanes lo..hi of a (any of both may lie outside 0..15), `other` elsewhere.
#if defined(PACELINE_AVX512)
static inline F16 f16_keep(F16 a, int lo, int hi, float other) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 in = _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(lo), _MM_CMPINT_NLT) &
                       _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(hi), _MM_CMPINT_LE);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), in, a.v)};
}
#else
static inline F16 f16_keep(F16 a, int lo, int hi, float other) {
  float t[16];
  f16_store(t, a);
  for (int i = 0; i < 16; i++) t[i] = i < lo || i > hi ? other : t[i];
  return f16_load(t);
}
#endif

template <typename T> static inline F16 f16_rounded(F16 a);
template <> inline F16 f16_rounded<float>(F16 a) { return a; }
template <> inline F16 f16_rounded<bf16>(F16 a) { return f16_to_bf16_and_back(a); }

// Partial loads and stores of n < 16 lanes (the rest read as zero, nothing beyond n is touched).
template <typename T> static inline F16 f16_load_n(const T* p, int n) {
  T t[16] = {};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return f16_load(t);
}
template <typename T> static inline void f16_store_n(T* p, F16 a, int n) {
  T t[16];
  f16_store(t, a);
  for (int i = 0; i < n; i++) p[i] = t[i];
}

// e^x to about 1 ulp: Cody-Waite reduction by ln 2, degree-6 polynomial on [-ln2/2, ln2/2] (coefficients: Cephes expf).
// The same value in every lane. x is clamped to [-87.34, 88.72], so results stay normal numbers; NaN stays NaN.
static inline F16 f16_exp(F16 x) {
  const F16 lo = f16_set(-87.33654f), hi = f16_set(88.72283f);
  const F16 c = f16_max(lo, f16_min(hi, x));  // both return their second operand on NaN, which so survives
  F16 n = f16_round(c * f16_set(1.44269504088896341f));
  F16 r = f16_fma(n, f16_set(-0.693359375f), c);
  r = f16_fma(n, f16_set(2.12194440e-4f), r);
  F16 p = f16_set(1.9875691500e-4f);
  p = f16_fma(p, r, f16_set(1.3981999507e-3f));
  p = f16_fma(p, r, f16_set(8.3334519073e-3f));
  p = f16_fma(p, r, f16_set(4.1665795894e-2f));
  p = f16_fma(p, r, f16_set(1.6666665459e-1f));
  p = f16_fma(p, r, f16_set(5.0000001201e-1f));
  p = f16_fma(p, r * r, r + f16_set(1.f));
  // n may be 128 at the top end: two steps keep each power in range.
  const F16 half = f16_round(n * f16_set(0.5f));
  p = p * f16_pow2(half) * f16_pow2(n - half);
  return p;
}
