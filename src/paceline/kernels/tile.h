// The inner loops of a linear layer: up to TILE_ROWS rows times up to TILE_WIDTH blocks of 16 outputs, fp32 sums, one
// fixed order of k for every (row, output). Rows are tiled for speed only: a tile of any height adds the same products
// in the same order.
//
// Weights of a panel of WIDTH neighbouring blocks are one stream:
//   bf16: [K / 2][WIDTH * 16][2]   (a pair of k feeds one vdpbf16ps lane)
//   fp32: [K][WIDTH * 16]
#pragma once
#include "simd.h"

#if defined(PACELINE_AVX512)
constexpr int TILE_WIDTH = 3, TILE_ROWS = 8;  // 24 sums + 3 weights + 1 input of 32 registers
#else
constexpr int TILE_WIDTH = 2, TILE_ROWS = 2;  // 16 registers of 8 lanes
#endif

// Five rows and fewer wait for memory, and the hardware's own prefetch is best (asking as well costs a third of the
// speed). More rows spend longer on a line than the hardware looks ahead: fetch into L2 this far ahead (measured on
// Zen 4: 20 -> 28 GB/s a core at 8 rows).
constexpr int PREFETCH_FROM_ROWS = 6, PREFETCH_BYTES = 8192;

template <typename T> struct Step;
template <> struct Step<float> { static constexpr int K = 1; };
template <> struct Step<bf16> { static constexpr int K = 2; };

template <int WIDTH, int ROWS>
inline void accumulate(F16 (&acc)[ROWS][WIDTH], const float* w, const float* x, int64_t ldx) {
  F16 wv[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) wv[n] = f16_load(w + 16 * n);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    const F16 xv = f16_set(x[r * ldx]);
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n] = f16_fma(wv[n], xv, acc[r][n]);
  }
}

#if defined(PACELINE_AVX512)
// One pair of k of 16 WIDTH outputs, as bf16 numbers in registers.
template <int WIDTH, int ROWS>
inline void add_pair(F16 (&acc)[ROWS][WIDTH], const __m512i (&w)[WIDTH], const bf16* x, int64_t ldx) {
#if PACELINE_ISA == 3
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    int pair;
    std::memcpy(&pair, x + r * ldx, 4);
    const __m512bh xv = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n].v = _mm512_dpbf16_ps(acc[r][n].v, (__m512bh)w[n], xv);
  }
#else
  F16 even[WIDTH], odd[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) {
    even[n].v = _mm512_castsi512_ps(_mm512_slli_epi32(w[n], 16));
    odd[n].v = _mm512_castsi512_ps(_mm512_and_si512(w[n], _mm512_set1_epi32(int(0xffff0000u))));
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    const F16 x0 = f16_set(bf16_to_f32(x[r * ldx])), x1 = f16_set(bf16_to_f32(x[r * ldx + 1]));
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n] = f16_fma(odd[n], x1, f16_fma(even[n], x0, acc[r][n]));
  }
#endif
}

template <int WIDTH, int ROWS>
inline void accumulate(F16 (&acc)[ROWS][WIDTH], const bf16* w, const bf16* x, int64_t ldx) {
  __m512i wv[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) wv[n] = _mm512_loadu_si512(w + 32 * n);
  add_pair<WIDTH, ROWS>(acc, wv, x, ldx);
}
#else
template <int WIDTH, int ROWS>
inline void accumulate(F16 (&acc)[ROWS][WIDTH], const bf16* w, const bf16* x, int64_t ldx) {
  F16 even[WIDTH], odd[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) f16_load_pairs(w + 32 * n, even[n], odd[n]);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    const F16 x0 = f16_set(bf16_to_f32(x[r * ldx])), x1 = f16_set(bf16_to_f32(x[r * ldx + 1]));
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n] = f16_fma(odd[n], x1, f16_fma(even[n], x0, acc[r][n]));
  }
}
#endif

template <int WIDTH, int ROWS> inline void clear(F16 (&acc)[ROWS][WIDTH]) {
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n] = f16_zero();
}

// Of the sums, those of the first `outs` outputs.
template <typename O, int WIDTH, int ROWS>
inline void store(const F16 (&acc)[ROWS][WIDTH], O* out, int64_t ldo, int64_t outs) {
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) {
      const int64_t left = outs - 16 * n;
      if (left >= 16) f16_store(out + r * ldo + 16 * n, acc[r][n]);
      else if (left > 0) f16_store_n(out + r * ldo + 16 * n, acc[r][n], int(left));
    }
}

template <typename T, typename O, int WIDTH, int ROWS>
__attribute__((noinline)) void tile(const T* w, int64_t k, const T* x, int64_t ldx, O* out, int64_t ldo, int64_t outs) {
  F16 acc[ROWS][WIDTH];
  clear<WIDTH, ROWS>(acc);
  for (int64_t i = 0; i < k; i += Step<T>::K, w += Step<T>::K * 16 * WIDTH) {
    if (ROWS >= PREFETCH_FROM_ROWS)
#pragma GCC unroll 4
      for (int n = 0; n < WIDTH; n++) __builtin_prefetch((const char*)w + 64 * n + PREFETCH_BYTES, 0, 2);
    accumulate<WIDTH, ROWS>(acc, w, x + i, ldx);
  }
  store<O, WIDTH, ROWS>(acc, out, ldo, outs);
}

template <typename T, typename O> using Tile = void (*)(const T*, int64_t, const T*, int64_t, O*, int64_t, int64_t);

template <typename T, typename O, int WIDTH> Tile<T, O> pick_rows(int rows) {
  static_assert(TILE_ROWS == 8 || TILE_ROWS == 2, "the table below");
#if defined(PACELINE_AVX512)
  static constexpr Tile<T, O> table[] = {tile<T, O, WIDTH, 1>, tile<T, O, WIDTH, 2>, tile<T, O, WIDTH, 3>,
                                         tile<T, O, WIDTH, 4>, tile<T, O, WIDTH, 5>, tile<T, O, WIDTH, 6>,
                                         tile<T, O, WIDTH, 7>, tile<T, O, WIDTH, 8>};
#else
  static constexpr Tile<T, O> table[] = {tile<T, O, WIDTH, 1>, tile<T, O, WIDTH, 2>};
#endif
  return table[rows - 1];
}

template <typename T, typename O> Tile<T, O> pick(int width, int rows) {
  if (width == 1) return pick_rows<T, O, 1>(rows);
  if (width == 2) return pick_rows<T, O, 2>(rows);
  return pick_rows<T, O, TILE_WIDTH>(rows);
}

// `rows` rows over one panel, in tiles of nearly equal height: short ones wait on their sums.
template <typename T, typename O>
void tiles(int width, const T* w, int64_t k, const T* x, int64_t ldx, int64_t rows, O* out, int64_t ldo, int64_t outs) {
  const int64_t count = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t t = 0; t < count; t++) {
    const int64_t from = rows * t / count, to = rows * (t + 1) / count;
    pick<T, O>(width, int(to - from))(w, k, x + from * ldx, ldx, out + from * ldo, ldo, outs);
  }
}
