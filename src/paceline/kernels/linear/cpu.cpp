// Linear layer: out[r][n] = sum over k of x[r][k] * w[n][k], fp32 sums, one fixed order of k for every (r, n).
//
// Packed weights: outputs in blocks of 16; 1..TILE_WIDTH neighbouring blocks form a panel, and a panel is one stream
// (tile.h), so that one row reads memory strictly forwards with as many independent chains of sums as there are blocks,
// and up to TILE_ROWS rows share each load. Panel p of P holds blocks [B p / P, B (p + 1) / P).
#include "gate.h"
#include "panels.h"
#include "simd.h"
#include "tile.h"
PACELINE_EXPORT_ISA

namespace {

struct Layer {  // filled by cpu.py
  const void* weight;
  int64_t outs, k, blocks, panels;
};

template <typename T, typename O>
void panel_rows(const Layer& layer, int64_t panel, const T* x, int64_t ldx, int64_t rows, O* out, int64_t ldo) {
  const int64_t first = layer.blocks * panel / layer.panels, last = layer.blocks * (panel + 1) / layer.panels;
  const T* w = (const T*)layer.weight + first * 16 * layer.k;
  tiles<T, O>(int(last - first), w, layer.k, x, ldx, rows, out + 16 * first, ldo, layer.outs - 16 * first);
}

double microseconds(const Layer& layer, int64_t rows, int64_t size) {  // of one thread
  const double bytes = double(layer.outs) * layer.k * size, products = double(layer.outs) * layer.k * rows;
  return bytes / 60e3 > products / 100e3 ? bytes / 60e3 : products / 100e3;
}

template <typename T, typename O>
void run(const Layer& layer, const T* x, int64_t ldx, int64_t rows, O* out, int64_t ldo) {
  for_panels(layer.panels, rows, microseconds(layer, rows, sizeof(T)), [&](int64_t panel, int64_t from, int64_t to) {
    panel_rows<T, O>(layer, panel, x + from * ldx, ldx, to - from, out + from * ldo, ldo);
  });
}

// Panels of 16 gates and their 16 ups: the thread that made them has them at hand.
template <typename T> void run_gated(const Layer& layer, const T* x, int64_t ldx, int64_t rows, T* out) {
  const int64_t ldo = layer.outs / 2;
  for_panels(layer.panels, rows, microseconds(layer, rows, sizeof(T)), [&](int64_t panel, int64_t from, int64_t to) {
    T sums[ROW_CHUNK * 32];
    tiles<T, T>(2, (const T*)layer.weight + panel * 32 * layer.k, layer.k, x + from * ldx, ldx, to - from, sums, 32, 32);
    gate_rows(sums, to - from, out + from * ldo + 16 * panel, ldo);
  });
}

}  // namespace

PACELINE_API int linear_max_width() { return TILE_WIDTH; }

// kind: bit 0: bf16 weights and inputs (else fp32); bit 1: fp32 outputs of bf16 inputs.
PACELINE_API void linear_run(const Layer* layer, int64_t kind, const void* x, int64_t ldx, int64_t rows, void* out) {
  if (kind == 0) run<float, float>(*layer, (const float*)x, ldx, rows, (float*)out, layer->outs);
  else if (kind == 1) run<bf16, bf16>(*layer, (const bf16*)x, ldx, rows, (bf16*)out, layer->outs);
  else run<bf16, float>(*layer, (const bf16*)x, ldx, rows, (float*)out, layer->outs);
}

// A layer whose panels are 16 gates and 16 ups (gated.py: interleaved); out [rows, outs / 2] in the inputs' type.
PACELINE_API void linear_gated_run(const Layer* layer, int64_t kind, const void* x, int64_t ldx, int64_t rows,
                                   void* out) {
  if (kind == 0) run_gated(*layer, (const float*)x, ldx, rows, (float*)out);
  else run_gated(*layer, (const bf16*)x, ldx, rows, (bf16*)out);
}
