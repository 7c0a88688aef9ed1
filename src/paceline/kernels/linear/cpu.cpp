// Linear layer: out[r][n] = sum over k of x[r][k] * w[n][k], fp32 sums, one fixed order of k for every (r, n).
//
// Packed weights: outputs in blocks of 16; 1..MAX_WIDTH neighbouring blocks form a panel, and a panel is one stream
//   bf16: [K / 2][blocks * 16][2]   (a pair of k feeds one vdpbf16ps lane)
//   fp32: [K][blocks * 16]
// so that one row reads memory strictly forwards with `blocks` independent chains of sums, and up to MAX_ROWS rows
// share each load. Panel p of P holds blocks [B p / P, B (p + 1) / P).
//
// Rows are tiled for speed only: a tile of any height adds the same products in the same order.
#include "panels.h"
#include "simd.h"
PACELINE_EXPORT_ISA

namespace {

#if defined(PACELINE_AVX512)
constexpr int MAX_WIDTH = 3, MAX_ROWS = 8;  // 24 sums + 3 weights + 1 input of 32 registers
#else
constexpr int MAX_WIDTH = 2, MAX_ROWS = 2;  // 16 registers of 8 lanes
#endif

// Two rows and fewer wait for memory, and the hardware's own prefetch is best. More rows spend longer on a line than
// the hardware looks ahead: fetch into L2 this far ahead (measured on Zen 4: 20 -> 28 GB/s a core at 8 rows).
constexpr int PREFETCH_FROM_ROWS = 3, PREFETCH_BYTES = 8192;

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

#if PACELINE_ISA == 3
template <int WIDTH, int ROWS>
inline void accumulate(F16 (&acc)[ROWS][WIDTH], const bf16* w, const bf16* x, int64_t ldx) {
  __m512bh wv[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) wv[n] = (__m512bh)_mm512_loadu_si512(w + 32 * n);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    int pair;
    std::memcpy(&pair, x + r * ldx, 4);
    const __m512bh xv = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n].v = _mm512_dpbf16_ps(acc[r][n].v, wv[n], xv);
  }
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

template <typename T, typename O, int WIDTH, int ROWS>
__attribute__((noinline)) void tile(const T* w, int64_t k, const T* x, int64_t ldx, O* out, int64_t ldo, int64_t outs) {
  F16 acc[ROWS][WIDTH];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) acc[r][n] = f16_zero();
  for (int64_t i = 0; i < k; i += Step<T>::K, w += Step<T>::K * 16 * WIDTH) {
    if (ROWS >= PREFETCH_FROM_ROWS)
#pragma GCC unroll 4
      for (int n = 0; n < WIDTH; n++) __builtin_prefetch((const char*)w + 64 * n + PREFETCH_BYTES, 0, 2);
    accumulate<WIDTH, ROWS>(acc, w, x + i, ldx);
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
    for (int n = 0; n < WIDTH; n++) {
      const int64_t left = outs - 16 * n;
      if (left >= 16) f16_store(out + r * ldo + 16 * n, acc[r][n]);
      else if (left > 0) f16_store_n(out + r * ldo + 16 * n, acc[r][n], int(left));
    }
}

template <typename T, typename O> using Tile = void (*)(const T*, int64_t, const T*, int64_t, O*, int64_t, int64_t);

template <typename T, typename O, int WIDTH> Tile<T, O> pick_rows(int rows) {
  static_assert(MAX_ROWS == 8 || MAX_ROWS == 2, "the table below");
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
  return pick_rows<T, O, MAX_WIDTH>(rows);
}

struct Layer {  // filled by cpu.py
  const void* weight;
  int64_t outs, k, blocks, panels;
};

template <typename T, typename O>
void panel_rows(const Layer& layer, int64_t panel, const T* x, int64_t ldx, int64_t rows, O* out, int64_t ldo) {
  const int64_t first = layer.blocks * panel / layer.panels, last = layer.blocks * (panel + 1) / layer.panels;
  const T* w = (const T*)layer.weight + first * 16 * layer.k;
  const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;  // of nearly equal height: short ones wait on their sums
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t from = rows * t / tiles, to = rows * (t + 1) / tiles;
    pick<T, O>(int(last - first), int(to - from))(w, layer.k, x + from * ldx, ldx, out + from * ldo + 16 * first, ldo,
                                                  layer.outs - 16 * first);
  }
}

template <typename T, typename O>
void run(const Layer& layer, const T* x, int64_t ldx, int64_t rows, O* out, int64_t ldo) {
  const double bytes = double(layer.outs) * layer.k * sizeof(T), products = double(layer.outs) * layer.k * rows;
  const double us = bytes / 60e3 > products / 100e3 ? bytes / 60e3 : products / 100e3;
  for_panels(layer.panels, rows, us, [&](int64_t panel, int64_t from, int64_t to) {
    panel_rows<T, O>(layer, panel, x + from * ldx, ldx, to - from, out + from * ldo, ldo);
  });
}

}  // namespace

PACELINE_API int linear_max_width() { return MAX_WIDTH; }

// kind: bit 0: bf16 weights and inputs (else fp32); bit 1: fp32 outputs of bf16 inputs.
PACELINE_API void linear_run(const Layer* layer, int64_t kind, const void* x, int64_t ldx, int64_t rows, void* out) {
  if (kind == 0) run<float, float>(*layer, (const float*)x, ldx, rows, (float*)out, layer->outs);
  else if (kind == 1) run<bf16, bf16>(*layer, (const bf16*)x, ldx, rows, (bf16*)out, layer->outs);
  else run<bf16, float>(*layer, (const bf16*)x, ldx, rows, (float*)out, layer->outs);
}
