// silu(gate) * up, with silu rounded to the model dtype before the product.
#include "gate.h"
#include "parallel.h"
#include "simd.h"
PACELINE_EXPORT_ISA

namespace {

constexpr int64_t PARALLEL_ELEMENTS = 1 << 15;  // below, waking the other threads costs more than it saves

template <typename T> void row(const T* gate, const T* up, T* out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f16_store(out + i, gated<T>(f16_load(gate + i), f16_load(up + i)));
  if (const int left = int(n - i))
    f16_store_n(out + i, gated<T>(f16_load_n(gate + i, left), f16_load_n(up + i, left)), left);
}

template <typename T> void run(const T* gate_up, int64_t ld, T* out, int64_t rows, int64_t n) {
  for_each(rows, rows * n >= PARALLEL_ELEMENTS,
           [&](int64_t r) { row(gate_up + r * ld, gate_up + r * ld + n, out + r * n, n); });
}

}  // namespace

PACELINE_API void swiglu_run(int64_t is_bf16, const void* gate_up, int64_t ld, void* out, int64_t rows, int64_t n) {
  if (is_bf16) run((const bf16*)gate_up, ld, (bf16*)out, rows, n);
  else run((const float*)gate_up, ld, (float*)out, rows, n);
}
