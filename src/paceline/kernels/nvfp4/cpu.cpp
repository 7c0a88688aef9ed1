// NVFP4: decoding to plain matrices, and a linear layer whose weights stay in 4 bits.
//
// The product decodes to the bf16 weights that dequantising at load would give, bit for bit, and adds in the order of
// linear/cpu.cpp (all k of an output in one chain of vdpbf16ps), so both ways to run a checkpoint give the same text.
//
// How 32 weights (16 outputs x a pair of k) are decoded in a few instructions: e2m1's magnitudes are
//   A: .5 1 2 4 = .5 * 2^e   for e = 0..3        B: 1.5 3 6 = .75 * 2^e  for e = 1..3        and 0
// and rounding to bf16 commutes with powers of two. So a block needs two bf16 numbers, A = bf16(.5 s) and
// B = bf16(.75 s) with s its scale; a weight is one of them with e added to its exponent and the sign set. Codes are
// regrouped at load: a 16-bit lane belongs to one output and one half of the pair (even or odd k) and holds four
// weights, v = 0..3 for k = 2 v + half. Shifted left by 2 v, the sign stands in bit 15 and e in bits 8..7, where bf16
// has them; one more bit says A. Zero has neither e nor that bit.
//
// Packed memory: outputs in blocks of 16, 1..MAX_WIDTH neighbouring blocks form a panel, and a panel is one stream of
//   [K / 64] x { scales (e4m3) [4][blocks][16],  codes [8][blocks][32 lanes of 16 bits] }
// of which the last may be partly unused: K is a multiple of 16. Panel p of P holds blocks [B p / P, B (p + 1) / P).
#include "gate.h"
#include "panels.h"
#include "parallel.h"
#include "simd.h"
#include "tile.h"
#include <vector>
PACELINE_EXPORT_ISA

namespace {

constexpr int BLOCK = 16, MAX_WIDTH = 2;
constexpr int64_t CHUNK = 64, CHUNK_BYTES = 64 + 512;  // inputs of a chunk; its bytes for 16 outputs
constexpr int AHEAD = 2048;  // bytes to fetch ahead, into L1 (measured on Zen 4: 2.0 -> 1.3 ns for 32 weights, one row)

// Bits of weight v in a lane, before the shift by 2 v.
constexpr uint16_t kind_bit(int v) { return v == 3 ? 1 : uint16_t(0x4000 >> 2 * v); }
constexpr uint16_t power_bits(int v) { return uint16_t(0x180 >> 2 * v); }

uint16_t lane_bits(int code, int v) {
  static constexpr uint8_t POWER[8] = {0, 0, 1, 1, 2, 2, 3, 3}, IS_A[8] = {0, 1, 1, 0, 1, 0, 1, 0};
  const int index = code & 7;
  if (index == 0) return 0;
  return uint16_t((code & 8 ? 0x8000 >> 2 * v : 0) | (POWER[index] << 7 >> 2 * v) | (IS_A[index] ? kind_bit(v) : 0));
}

struct Tables {
  float scale[256], value[16];
  uint32_t pair[4][256];  // of a byte of codes: what its even and its odd k put into their lanes
  Tables() {
    static constexpr float E2M1[8] = {0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
    for (int i = 0; i < 256; i++) {
      const int e = i >> 3 & 15, m = i & 7;
      scale[i] = e ? std::ldexp(float(8 + m), e - 10) : std::ldexp(float(m), -9);
    }
    for (int i = 0; i < 16; i++) value[i] = i < 8 ? E2M1[i] : -E2M1[i - 8];
    for (int v = 0; v < 4; v++)
      for (int i = 0; i < 256; i++) pair[v][i] = lane_bits(i & 15, v) | uint32_t(lane_bits(i >> 4, v)) << 16;
  }
};
const Tables TABLES;

template <typename O> void decode_row(const uint8_t* codes, const uint8_t* scales, float global, int64_t k, O* out) {
  const F16 values = f16_load(TABLES.value);
  for (int64_t b = 0; b < k / BLOCK; b++, codes += 8, out += 16) {
    O value[16];
    f16_store(value, values * f16_set(TABLES.scale[scales[b]] * global));
    for (int i = 0; i < 8; i++) out[2 * i] = value[codes[i] & 15], out[2 * i + 1] = value[codes[i] >> 4];
  }
}

struct Matrix {  // filled by cpu.py; a checkpoint's tensors
  const uint8_t *codes, *scales;
  const float* globals;
  int64_t outs, k;
};

void pack_chunk(const Matrix& m, int64_t first, int64_t width, int64_t k0, uint8_t* to) {
  const int64_t subs = m.k - k0 < CHUNK ? (m.k - k0) / BLOCK : CHUNK / BLOCK;
  for (int64_t n = 0; n < width * 16 && first * 16 + n < m.outs; n++) {
    const int64_t out = first * 16 + n, block = n / 16, lane = n % 16;
    for (int64_t s = 0; s < subs; s++) {
      const uint8_t scale = m.scales[(out * m.k + k0) / BLOCK + s];
      const uint8_t* codes = m.codes + (out * m.k + k0) / 2 + 8 * s;
      to[(s * width + block) * 16 + lane] = scale;
      if (scale == 0) continue;  // zeros: two bases of 0 would take e for a number
      for (int h = 0; h < 2; h++) {
        uint32_t lanes = 0;
        for (int v = 0; v < 4; v++) lanes |= TABLES.pair[v][codes[4 * h + v]];
        std::memcpy(to + 64 * width + ((2 * s + h) * width + block) * 64 + 4 * lane, &lanes, 4);
      }
    }
  }
}

struct Layer {  // filled by cpu.py
  const uint8_t* weight;
  const float* globals;  // one an output, times 256
  int64_t outs, k, blocks, panels;
  int64_t first(int64_t panel) const { return blocks * panel / panels; }
  int64_t bytes_before(int64_t block) const { return block * ((k + CHUNK - 1) / CHUNK) * CHUNK_BYTES; }
};

#if defined(PACELINE_AVX512)
// Two bf16 numbers for each of 16 outputs, both halves of a pair alike: .5 s and .75 s.
inline void bases(const uint8_t* scales, const float* globals, __m512i& a, __m512i& b) {
  // An e4m3 byte shifted by 7 is the half-precision number 2^-8 times as large, subnormals included.
  const __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)scales)), 7);
  const __m512 s = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_loadu_ps(globals));
  const __m512 lo = _mm512_mul_ps(s, _mm512_set1_ps(.5f)), hi = _mm512_mul_ps(s, _mm512_set1_ps(.75f));
#if PACELINE_ISA == 3
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
  const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                         4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  a = _mm512_permutexvar_epi16(twice, both);
  b = _mm512_permutexvar_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(16)), both);
#else
  const __m512i upper = _mm512_set1_epi32(int(0xffff0000u)), la = f16_bf16_bits({lo}), lb = f16_bf16_bits({hi});
  a = _mm512_or_si512(_mm512_srli_epi32(la, 16), _mm512_and_si512(la, upper));
  b = _mm512_or_si512(_mm512_srli_epi32(lb, 16), _mm512_and_si512(lb, upper));
#endif
}

template <int V> inline __m512i decode(__m512i z, __m512i a, __m512i b) {
  const __mmask32 is_a = _mm512_test_epi16_mask(z, _mm512_set1_epi16(short(kind_bit(V))));
  const __mmask32 some = _mm512_test_epi16_mask(z, _mm512_set1_epi16(short(kind_bit(V) | power_bits(V))));
  const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(z, 2 * V), _mm512_set1_epi16(short(0x8180)));
  return _mm512_maskz_add_epi16(some, bits, _mm512_mask_blend_epi16(is_a, b, a));
}

template <int V, int WIDTH, int ROWS>
inline void step(F16 (&acc)[ROWS][WIDTH], const __m512i (&z)[WIDTH], const __m512i (&a)[WIDTH],
                 const __m512i (&b)[WIDTH], const bf16* x, int64_t ldx) {
  __m512i w[WIDTH];
#pragma GCC unroll 4
  for (int n = 0; n < WIDTH; n++) w[n] = decode<V>(z[n], a[n], b[n]);
  add_pair<WIDTH, ROWS>(acc, w, x + 2 * V, ldx);
}

template <typename O, int WIDTH, int ROWS>
__attribute__((noinline)) void packed_tile(const uint8_t* w, const float* globals, int64_t k, const bf16* x,
                                           int64_t ldx, O* out, int64_t ldo, int64_t outs) {
  F16 acc[ROWS][WIDTH];
  clear<WIDTH, ROWS>(acc);
  for (int64_t k0 = 0; k0 < k; k0 += CHUNK, w += WIDTH * CHUNK_BYTES) {
    const int64_t subs = k - k0 < CHUNK ? (k - k0) / BLOCK : CHUNK / BLOCK;
    for (int64_t s = 0; s < subs; s++) {
      __m512i a[WIDTH], b[WIDTH];
#pragma GCC unroll 4
      for (int n = 0; n < WIDTH; n++) bases(w + (s * WIDTH + n) * 16, globals + 16 * n, a[n], b[n]);
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        const uint8_t* codes = w + (1 + 2 * s + h) * WIDTH * 64;
        const bf16* xs = x + k0 + 16 * s + 8 * h;
        __m512i z[WIDTH];
#pragma GCC unroll 4
        for (int n = 0; n < WIDTH; n++) {
          z[n] = _mm512_loadu_si512(codes + 64 * n);
          __builtin_prefetch(codes + 64 * n + AHEAD, 0, 3);
        }
        step<0>(acc, z, a, b, xs, ldx);
        step<1>(acc, z, a, b, xs, ldx);
        step<2>(acc, z, a, b, xs, ldx);
        step<3>(acc, z, a, b, xs, ldx);
      }
    }
  }
  store<O, WIDTH, ROWS>(acc, out, ldo, outs);
}

template <typename O>
using PackedTile = void (*)(const uint8_t*, const float*, int64_t, const bf16*, int64_t, O*, int64_t, int64_t);

template <typename O, int WIDTH> PackedTile<O> pick_packed(int rows) {
  static_assert(TILE_ROWS == 8, "the table below");
  static constexpr PackedTile<O> table[] = {packed_tile<O, WIDTH, 1>, packed_tile<O, WIDTH, 2>,
                                            packed_tile<O, WIDTH, 3>, packed_tile<O, WIDTH, 4>,
                                            packed_tile<O, WIDTH, 5>, packed_tile<O, WIDTH, 6>,
                                            packed_tile<O, WIDTH, 7>, packed_tile<O, WIDTH, 8>};
  return table[rows - 1];
}

// A panel as tile.h wants it, for rows that are too many for one tile: [K / 2][WIDTH * 16][2] in this thread's L2.
// noipa: GCC 12 otherwise believes that one of the instances writes nothing (-fipa-modref) and drops the call.
template <int WIDTH> __attribute__((noipa)) void unpack(const uint8_t* w, const float* globals, int64_t k, bf16* to) {
  for (int64_t k0 = 0; k0 < k; k0 += CHUNK, w += WIDTH * CHUNK_BYTES) {
    const int64_t subs = k - k0 < CHUNK ? (k - k0) / BLOCK : CHUNK / BLOCK;
    for (int64_t s = 0; s < subs; s++) {
      for (int n = 0; n < WIDTH; n++) {
        __m512i a, b;
        bases(w + (s * WIDTH + n) * 16, globals + 16 * n, a, b);
        for (int h = 0; h < 2; h++) {
          const __m512i z = _mm512_loadu_si512(w + ((1 + 2 * s + h) * WIDTH + n) * 64);
          bf16* at = to + (4 * h * WIDTH + n) * 32;
          _mm512_storeu_si512(at, decode<0>(z, a, b));
          _mm512_storeu_si512(at + 32 * WIDTH, decode<1>(z, a, b));
          _mm512_storeu_si512(at + 64 * WIDTH, decode<2>(z, a, b));
          _mm512_storeu_si512(at + 96 * WIDTH, decode<3>(z, a, b));
        }
      }
      to += 8 * WIDTH * 32;
    }
  }
}

// One panel's outputs for `count` rows.
template <typename O>
void panel_rows(const Layer& layer, int64_t panel, const bf16* x, int64_t ldx, int64_t count, O* to, int64_t ldo) {
  const int64_t first = layer.first(panel), width = layer.first(panel + 1) - first, outs = layer.outs - 16 * first;
  const uint8_t* w = layer.weight + layer.bytes_before(first);
  const float* globals = layer.globals + 16 * first;
  if (count <= TILE_ROWS) {
    const auto tile = width == 1 ? pick_packed<O, 1>(int(count)) : pick_packed<O, 2>(int(count));
    return tile(w, globals, layer.k, x, ldx, to, ldo, outs);
  }
  auto& panel_weights = thread_own<std::vector<bf16>>();
  panel_weights.resize(size_t(width * 16 * layer.k));
  (width == 1 ? unpack<1> : unpack<2>)(w, globals, layer.k, panel_weights.data());
  tiles<bf16, O>(int(width), panel_weights.data(), layer.k, x, ldx, count, to, ldo, outs);
}

double microseconds(const Layer& layer, int64_t rows) {  // of one thread
  const double weights = double(layer.outs) * layer.k, decoding = weights / 25e3, products = weights * rows / 100e3;
  return decoding > products ? decoding : products;
}

template <typename O> void run(const Layer& layer, const bf16* x, int64_t ldx, int64_t rows, O* out) {
  for_panels(layer.panels, rows, microseconds(layer, rows), [&](int64_t panel, int64_t r0, int64_t r1) {
    O* to = out + r0 * layer.outs + 16 * layer.first(panel);
    panel_rows<O>(layer, panel, x + r0 * ldx, ldx, r1 - r0, to, layer.outs);
  });
}

// Panels of 16 gates and their 16 ups: the thread that made them has them at hand.
void run_gated(const Layer& layer, const bf16* x, int64_t ldx, int64_t rows, bf16* out) {
  const int64_t ldo = layer.outs / 2;
  for_panels(layer.panels, rows, microseconds(layer, rows), [&](int64_t panel, int64_t r0, int64_t r1) {
    bf16 sums[ROW_CHUNK * 32];
    panel_rows<bf16>(layer, panel, x + r0 * ldx, ldx, r1 - r0, sums, 32);
    gate_rows(sums, r1 - r0, out + r0 * ldo + 16 * panel, ldo);
  });
}
#endif

}  // namespace

// out: [outs, k] fp32 (bf16: 0) or bf16 (bf16: 1).
PACELINE_API void nvfp4_decode(const Matrix* m, int64_t bf16_out, void* out) {
  for_each(m->outs, m->outs * m->k > 1 << 15, [&](int64_t n) {
    const uint8_t *codes = m->codes + n * m->k / 2, *scales = m->scales + n * m->k / BLOCK;
    if (bf16_out) decode_row(codes, scales, m->globals[n], m->k, (bf16*)out + n * m->k);
    else decode_row(codes, scales, m->globals[n], m->k, (float*)out + n * m->k);
  });
}

PACELINE_API int nvfp4_max_width() { return MAX_WIDTH; }

// Regroup a checkpoint's tensors into the zeroed memory of `layer`.
PACELINE_API void nvfp4_pack(const Matrix* m, const Layer* layer, uint8_t* packed) {
  for_each(layer->panels, m->outs * m->k > 1 << 15, [&](int64_t panel) {
    const int64_t first = layer->first(panel), width = layer->first(panel + 1) - first;
    uint8_t* to = packed + layer->bytes_before(first);
    for (int64_t k0 = 0; k0 < m->k; k0 += CHUNK, to += width * CHUNK_BYTES) pack_chunk(*m, first, width, k0, to);
  });
}

#if defined(PACELINE_AVX512)
// x: bf16 rows at a distance of ldx; fp32_out: 0 for bf16 outputs.
PACELINE_API void nvfp4_run(const Layer* layer, int64_t fp32_out, const void* x, int64_t ldx, int64_t rows, void* out) {
  if (fp32_out) run<float>(*layer, (const bf16*)x, ldx, rows, (float*)out);
  else run<bf16>(*layer, (const bf16*)x, ldx, rows, (bf16*)out);
}

// A layer whose panels are 16 gates and 16 ups (linear/gated.py: interleaved); out: bf16 [rows, outs / 2].
PACELINE_API void nvfp4_gated_run(const Layer* layer, int64_t, const void* x, int64_t ldx, int64_t rows, void* out) {
  run_gated(*layer, (const bf16*)x, ldx, rows, (bf16*)out);
}
#endif
