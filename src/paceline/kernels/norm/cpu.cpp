// RMS norms. A row is read twice: once for its sum of squares, once for the result. The sum has one fixed order
// (four sums of 16 lanes, joined in a tree), whatever the number of rows or threads.
#include "parallel.h"
#include "simd.h"
PACELINE_EXPORT_ISA

namespace {

constexpr int64_t PARALLEL_ELEMENTS = 1 << 16;  // below, waking the other threads costs more than it saves

template <typename T> inline float sum_of_squares(const T* x, int64_t n) {
  F16 sum[4] = {f16_zero(), f16_zero(), f16_zero(), f16_zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int j = 0; j < 4; j++) {
      const F16 v = f16_load(x + i + 16 * j);
      sum[j] = f16_fma(v, v, sum[j]);
    }
  for (; i < n; i += 16) {
    const F16 v = n - i >= 16 ? f16_load(x + i) : f16_load_n(x + i, int(n - i));
    sum[0] = f16_fma(v, v, sum[0]);
  }
  return f16_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// zero_centred: one rounding at the end, as Qwen3_5RMSNorm; else the normed value is rounded before the weight.
template <typename T, bool ZERO_CENTRED> inline F16 scaled(F16 x, F16 inverse, F16 w) {
  if (ZERO_CENTRED) return x * inverse * (f16_set(1.f) + w);
  return w * f16_rounded<T>(x * inverse);
}

template <typename T, bool ZERO_CENTRED>
void norm_row(const T* x, const T* w, T* out, int64_t n, float eps) {
  const F16 inverse = f16_set(1.f / std::sqrt(sum_of_squares(x, n) / float(n) + eps));
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f16_store(out + i, scaled<T, ZERO_CENTRED>(f16_load(x + i), inverse, f16_load(w + i)));
  if (const int left = int(n - i))
    f16_store_n(out + i, scaled<T, ZERO_CENTRED>(f16_load_n(x + i, left), inverse, f16_load_n(w + i, left)), left);
}

template <typename T> void add_row(const T* x, T* residual, const T* old, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f16_store(residual + i, f16_load(old + i) + f16_load(x + i));
  if (const int left = int(n - i))
    f16_store_n(residual + i, f16_load_n(old + i, left) + f16_load_n(x + i, left), left);
}

template <typename T>
void run(const T* x, int64_t ldx, const T* old, int64_t ldo, const T* w, T* out, T* residual, int64_t rows, int64_t n,
         float eps, bool zero_centred) {
  for_each(rows, rows * n >= PARALLEL_ELEMENTS, [&](int64_t r) {
    const T* source = x + r * ldx;
    if (old) {
      add_row(source, residual + r * n, old + r * ldo, n);
      source = residual + r * n;
    }
    (zero_centred ? norm_row<T, true> : norm_row<T, false>)(source, w, out + r * n, n, eps);
  });
}

}  // namespace

// old null: out = norm(x). Otherwise residual = old + x (rounded to the model dtype) and out = norm(residual).
PACELINE_API void norm_run(int64_t is_bf16, int64_t zero_centred, float eps, int64_t rows, int64_t n, const void* x,
                           int64_t ldx, const void* old, int64_t ldo, const void* w, void* out, void* residual) {
  if (is_bf16)
    run((const bf16*)x, ldx, (const bf16*)old, ldo, (const bf16*)w, (bf16*)out, (bf16*)residual, rows, n, eps,
        zero_centred);
  else
    run((const float*)x, ldx, (const float*)old, ldo, (const float*)w, (float*)out, (float*)residual, rows, n, eps,
        zero_centred);
}
