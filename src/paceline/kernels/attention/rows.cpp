// The small operators around attention, each row by itself: head norm with rotary embedding, cache writes, output gate.
#include "parallel.h"
#include "simd.h"

namespace {

constexpr int64_t PARALLEL_ELEMENTS = 1 << 15;  // below, waking the other threads costs more than it saves

template <typename T> inline F16 load_up_to(const T* p, int64_t n) {
  return n >= 16 ? f16_load(p) : f16_load_n(p, int(n));
}
template <typename T> inline void store_up_to(T* p, F16 a, int64_t n) {
  if (n >= 16) f16_store(p, a);
  else f16_store_n(p, a, int(n));
}

template <typename T> struct NormRope {
  const T* x;
  int64_t row_stride, head_stride, rows, heads, dim;
  const T* weight;  // null: no norm
  float eps;
  bool zero_centred;
  const T *cos, *sin;
  int64_t half;
  const int64_t* positions;
  T* out;

  void norm(const T* in, T* to) const {
    F16 sum = f16_zero();
    for (int64_t i = 0; i < dim; i += 16) {
      const F16 v = load_up_to(in + i, dim - i);
      sum = f16_fma(v, v, sum);
    }
    const F16 inverse = f16_set(1.f / std::sqrt(f16_sum(sum) / float(dim) + eps));
    for (int64_t i = 0; i < dim; i += 16) {
      const F16 v = load_up_to(in + i, dim - i), w = load_up_to(weight + i, dim - i);
      const F16 y = zero_centred ? v * inverse * (f16_set(1.f) + w) : w * f16_rounded<T>(v * inverse);
      store_up_to(to + i, y, dim - i);
    }
  }

  void head(int64_t r, int64_t h) const {
    const T* in = x + r * row_stride + h * head_stride;
    T* to = out + (r * heads + h) * dim;
    if (weight) norm(in, to);
    else std::memcpy(to, in, size_t(dim) * sizeof(T));
    const T *c = cos + positions[r] * half, *s = sin + positions[r] * half;
    for (int64_t i = 0; i < half; i += 16) {  // both products are rounded to the model dtype, then their sum
      const int64_t n = half - i;
      const F16 a = load_up_to(to + i, n), b = load_up_to(to + half + i, n);
      const F16 cv = load_up_to(c + i, n), sv = load_up_to(s + i, n);
      store_up_to(to + i, f16_rounded<T>(a * cv) - f16_rounded<T>(b * sv), n);
      store_up_to(to + half + i, f16_rounded<T>(b * cv) + f16_rounded<T>(a * sv), n);
    }
  }

  void run() const {
    for_each(rows * heads, rows * heads * dim >= PARALLEL_ELEMENTS,
             [&](int64_t i) { head(i / heads, i % heads); });
  }
};

template <typename T>
void gate_rows(const T* x, const T* gate, int64_t row_stride, int64_t head_stride, T* out, int64_t rows, int64_t heads,
               int64_t dim) {
  const F16 one = f16_set(1.f);
  for_each(rows * heads, rows * heads * dim >= PARALLEL_ELEMENTS, [&](int64_t j) {
    const T* g = gate + j / heads * row_stride + j % heads * head_stride;
    for (int64_t i = 0; i < dim; i += 16) {
      const F16 s = one / (one + f16_exp(f16_zero() - load_up_to(g + i, dim - i)));
      store_up_to(out + j * dim + i, load_up_to(x + j * dim + i, dim - i) * f16_rounded<T>(s), dim - i);
    }
  });
}

}  // namespace

PACELINE_API void norm_rope_run(int64_t is_bf16, const void* x, int64_t row_stride, int64_t head_stride, int64_t rows,
                                int64_t heads, int64_t dim, const void* weight, float eps, int64_t zero_centred,
                                const void* cos, const void* sin, int64_t half, const int64_t* positions, void* out) {
  if (is_bf16)
    NormRope<bf16>{(const bf16*)x, row_stride, head_stride, rows, heads, dim, (const bf16*)weight, eps,
                   bool(zero_centred), (const bf16*)cos, (const bf16*)sin, half, positions, (bf16*)out}.run();
  else
    NormRope<float>{(const float*)x, row_stride, head_stride, rows, heads, dim, (const float*)weight, eps,
                    bool(zero_centred), (const float*)cos, (const float*)sin, half, positions, (float*)out}.run();
}

// All sizes in bytes; a row of k or v is `row` bytes in one piece.
PACELINE_API void store_kv_run(const char* k, int64_t k_stride, const char* v, int64_t v_stride, char* k_cache,
                               char* v_cache, const int64_t* slots, int64_t rows, int64_t row) {
  for (int64_t r = 0; r < rows; r++) {  // one thread: padding rows share a slot, and a copy costs nanoseconds
    std::memcpy(k_cache + slots[r] * row, k + r * k_stride, size_t(row));
    std::memcpy(v_cache + slots[r] * row, v + r * v_stride, size_t(row));
  }
}

PACELINE_API void sigmoid_gate_run(int64_t is_bf16, const void* x, const void* gate, int64_t row_stride,
                                   int64_t head_stride, void* out, int64_t rows, int64_t heads, int64_t dim) {
  if (is_bf16)
    gate_rows((const bf16*)x, (const bf16*)gate, row_stride, head_stride, (bf16*)out, rows, heads, dim);
  else
    gate_rows((const float*)x, (const float*)gate, row_stride, head_stride, (float*)out, rows, heads, dim);
}
