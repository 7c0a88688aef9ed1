// Keyed sampling on the CPU: argmax of score rows, bare or with the noise of reference.py (same definition).
//
// Rows and pieces of the vocabulary are scanned in parallel; a piece reports its first maximum, and pieces are
// compared in ascending order with `>`, so that the lowest id wins a tie however the work was cut.
#include "parallel.h"
#include "simd.h"

#include <algorithm>
#include <limits>
#include <vector>

PACELINE_EXPORT_ISA

namespace {

typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));

constexpr int64_t kLanes = 16;
constexpr int64_t kPiece = 16384;          // ids a task
constexpr int64_t kParallelIds = 16384;    // below this many scores one thread is faster
constexpr float kNothing = -std::numeric_limits<float>::infinity();

constexpr uint64_t kPositionStep = 0x9E3779B97F4A7C15, kTokenStep = 0xD1B54A32D192ED03;
constexpr uint64_t kMix1 = 0xBF58476D1CE4E5B9, kMix2 = 0x94D049BB133111EB;

template <typename U> inline U mix64(U x) {
  x = (x ^ (x >> 30)) * kMix1;
  x = (x ^ (x >> 27)) * kMix2;
  return x ^ (x >> 31);
}

inline uint64_t row_key(int64_t key, int64_t position) {
  return mix64(uint64_t(key) + kPositionStep * (uint64_t(position) + 1));
}

inline uint32_t random_bits(uint64_t row_key, int64_t id) {
  return uint32_t(mix64(row_key + kTokenStep * (uint64_t(id) + 1)) >> 32);
}

inline float noise(uint32_t x) { return float(-std::log(-std::log((double(x) + 0.5) * 0x1p-32))); }

struct Best {
  float value = kNothing;  // a score must exceed it, so -inf and NaN never win
  int64_t id = 0;          // and a row without a winner yields id 0
};

inline f32x16 load(const float* p) {
  f32x16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline bool any(i32x16 mask) {
#if defined(PACELINE_AVX512)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; i++) all |= mask[i];
  return all != 0;
#endif
}

// ---------------------------------------------------------------- greedy

Best scan_greedy(const float* scores, int64_t from, int64_t to) {
  constexpr int64_t kBlock = 512;
  Best best;
  for (int64_t at = from; at < to; at += kBlock) {
    const int64_t end = std::min(at + kBlock, to);
    f32x16 top[4];
    for (auto& t : top) t = kNothing - (f32x16){};
    int64_t i = at;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes)
      for (int64_t c = 0; c < 4; c++) {
        const f32x16 s = load(scores + i + c * kLanes);
        top[c] = s > top[c] ? s : top[c];
      }
    bool higher = false;
    for (auto& t : top) higher |= any((i32x16)(t > best.value - (f32x16){}));
    for (; i < end; i++) higher |= scores[i] > best.value;
    if (higher)
      for (i = at; i < end; i++)
        if (scores[i] > best.value) best = {scores[i], i};
  }
  return best;
}

// ---------------------------------------------------------------- scores + noise

// Sixteen random words of ids `id`.. and an upper bound of their noise.
struct Draw {
  u64x8 low, high;  // row key + step * (id + 1) of lanes 0..7 and 8..15

  Draw(uint64_t row_key, int64_t id) {
    for (int i = 0; i < 8; i++) {
      low[i] = row_key + kTokenStep * (uint64_t(id + i) + 1);
      high[i] = row_key + kTokenStep * (uint64_t(id + i + 8) + 1);
    }
  }
  void next() {
    low += kTokenStep * kLanes;
    high += kTokenStep * kLanes;
  }
  // -ln u >= 1 - u, so noise = -ln(-ln u) <= -ln(1 - u) = 32 ln 2 - ln(y + 1/2) with y = 2^32 - 1 - x. And log2 of a
  // float is at least its bit pattern read as a fixed-point number: the exponent plus the fraction instead of
  // log2(1 + fraction). The last term outweighs the roundings (they are below 1e-5).
  f32x16 noise_bound() const {
    const u32x8 a = __builtin_convertvector(mix64(low) >> 32, u32x8);
    const u32x8 b = __builtin_convertvector(mix64(high) >> 32, u32x8);
    u32x16 x;
    std::memcpy(&x, &a, sizeof a);
    std::memcpy((char*)&x + sizeof a, &b, sizeof b);
    const f32x16 y = __builtin_convertvector(~x, f32x16);
    const f32x16 log2y = __builtin_convertvector((i32x16)y, f32x16) * 0x1p-23f - 127.f;
    return (32.f - log2y) * 0.69314718f + 1e-3f;
  }
};

constexpr float kMaxNoise = 22.88f;  // -ln(-ln(1 - 2^-33)) = 22.874

// First maximum of score + noise over ids [from, to). Logarithms are taken only where an upper bound of the sum still
// exceeds the best sum so far; float addition is monotone, so nothing that could win is passed over.
Best scan_gumbel(const float* scores, uint64_t key, int64_t from, int64_t to) {
  Best best;
  auto visit = [&](int64_t id) {
    if (!(scores[id] > kNothing)) return;
    const float sum = scores[id] + noise(random_bits(key, id));
    if (sum > best.value) best = {sum, id};
  };
  Draw draw(key, from);
  int64_t at = from;
  for (; at + kLanes <= to; at += kLanes, draw.next()) {
    const f32x16 s = load(scores + at);
    if (!any((i32x16)(s + kMaxNoise > best.value))) continue;
    const f32x16 bound = s + draw.noise_bound();
    if (!any((i32x16)(bound > best.value))) continue;
    for (int64_t i = 0; i < kLanes; i++)
      if (bound[i] > best.value) visit(at + i);
  }
  for (; at < to; at++)
    if (scores[at] + kMaxNoise > best.value) visit(at);
  return best;
}

// scan(row, from, to) -> Best over all rows, cut into pieces; the winner's id of each row to `out`.
template <typename Scan> void over_pieces(int64_t rows, int64_t vocab, int64_t* out, Scan&& scan) {
  const int64_t pieces = (vocab + kPiece - 1) / kPiece;
  std::vector<Best> found(size_t(rows * pieces));
  auto task = [&](int64_t t) {
    const int64_t from = t % pieces * kPiece;
    found[size_t(t)] = scan(t / pieces, from, std::min(from + kPiece, vocab));
  };
  for_each(rows * pieces, rows * pieces > 1 && rows * vocab > kParallelIds, task);
  for (int64_t r = 0; r < rows; r++) {
    Best best;
    for (int64_t p = 0; p < pieces; p++)
      if (found[size_t(r * pieces + p)].value > best.value) best = found[size_t(r * pieces + p)];
    out[r] = best.id;
  }
}

}  // namespace

PACELINE_API void sample_greedy(const float* scores, int64_t stride, int64_t rows, int64_t vocab, int64_t* out) {
  over_pieces(rows, vocab, out, [&](int64_t r, int64_t from, int64_t to) {
    return scan_greedy(scores + r * stride, from, to);
  });
}

PACELINE_API void sample_gumbel_argmax(const float* scores, int64_t stride, int64_t rows, int64_t vocab,
                                       const int64_t* keys, const int64_t* positions, int64_t* out) {
  over_pieces(rows, vocab, out, [&](int64_t r, int64_t from, int64_t to) {
    return scan_gumbel(scores + r * stride, row_key(keys[r], positions[r]), from, to);
  });
}

PACELINE_API void sample_gumbel_noise(const int64_t* keys, const int64_t* positions, int64_t rows, int64_t vocab,
                                      float* out) {
  for_each(rows * vocab, rows * vocab > 1024, [&](int64_t i) {
    out[i] = noise(random_bits(row_key(keys[i / vocab], positions[i / vocab]), i % vocab));
  });
}
