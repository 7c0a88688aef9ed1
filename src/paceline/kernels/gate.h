// silu(gate) * up of 16 lanes, with silu rounded to the model dtype before the product (kernels/swiglu/reference.py).
#pragma once
#include "simd.h"

template <typename T> static inline F16 gated(F16 gate, F16 up) {
  const F16 one = f16_set(1.f);
  return f16_rounded<T>(gate / (one + f16_exp(f16_zero() - gate))) * up;
}

// Rows of 16 gates and 16 ups -> 16 results each, `ldo` apart.
template <typename T> static inline void gate_rows(const T* sums, int64_t rows, T* out, int64_t ldo) {
  for (int64_t r = 0; r < rows; r++) f16_store(out + r * ldo, gated<T>(f16_load(sums + 32 * r), f16_load(sums + 32 * r + 16)));
}
