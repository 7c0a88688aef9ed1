// Attention over a paged cache, online softmax in fp32, keys in blocks of 64 at absolute multiples of 64.
//
// Neighbouring rows of one sequence form a group, so that a block of keys is laid out once for all of them. What a row
// does with a block (its scores, its maximum, its sums over its own keys only) is the same whoever is in the group:
//   scores   one chain over the head dimension for each key, 64 keys in four registers
//   weights  e^(score - maximum so far), masked keys exactly 0
//   values   one chain over the row's keys for each output, after the older sum was scaled
// so that a row's result depends on its query, its keys and its range alone.
#include "parallel.h"
#include "simd.h"
#include <algorithm>
#include <limits>
#include <omp.h>
#include <vector>
PACELINE_EXPORT_ISA

namespace {

constexpr int KEYS = 64;          // a block of keys: four registers of scores
constexpr int GROUP_ROWS = 16;    // rows that share a block's layout; more only cost scratch memory
constexpr int64_t PARALLEL_WORK = 1 << 17;  // products; below, waking the other threads costs more than it saves
#if defined(PACELINE_AVX512)
constexpr int HEADS_AT_ONCE = 4;  // 16 sums in registers
#else
constexpr int HEADS_AT_ONCE = 1;
#endif
constexpr float NONE = -std::numeric_limits<float>::infinity();

// Keys are laid out as columns of 32-bit numbers: [dim / Column::dims][64]. With vdpbf16ps a column holds a pair of
// bf16 (and so does the query), else one fp32.
template <typename T> struct Column { static constexpr int dims = 1; };
#if PACELINE_ISA == 3
template <> struct Column<bf16> { static constexpr int dims = 2; };
#endif

template <typename T> inline F16 score_step(const float* key, float query, F16 sum) {
#if PACELINE_ISA == 3
  if constexpr (Column<T>::dims == 2) {
    int pair;
    std::memcpy(&pair, &query, 4);
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_loadu_si512(key), (__m512bh)_mm512_set1_epi32(pair))};
  }
#endif
  return f16_fma(f16_load(key), f16_set(query), sum);
}

// `n` numbers of one key or query as columns, from `dims` values; the rest of `n` is zero.
template <typename T> inline const float* to_columns(const T* from, int64_t dims, float* to, int64_t n) {
  if constexpr (Column<T>::dims == 2) {
    std::memcpy(to, from, size_t(dims) * sizeof(T));
    std::memset((char*)to + dims * sizeof(T), 0, size_t(n * 4 - dims * int64_t(sizeof(T))));
  } else {
    for (int64_t i = 0; i < dims; i++) to[i] = to_f32(from[i]);
    for (int64_t i = dims; i < n; i++) to[i] = 0.f;
  }
  return to;
}

#if defined(PACELINE_AVX512)
// Numbers column..column + 15 of 16 rows, transposed.
inline void transpose16(const float* const* from, int64_t column, float* to, int64_t ldt) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from[i] + column);
  for (int i = 0; i < 8; i++) {
    b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512d p = (__m512d)b[4 * i], q = (__m512d)b[4 * i + 1], r = (__m512d)b[4 * i + 2],
                  s = (__m512d)b[4 * i + 3];
    a[4 * i] = (__m512)_mm512_unpacklo_pd(p, r);
    a[4 * i + 1] = (__m512)_mm512_unpackhi_pd(p, r);
    a[4 * i + 2] = (__m512)_mm512_unpacklo_pd(q, s);
    a[4 * i + 3] = (__m512)_mm512_unpackhi_pd(q, s);
  }
  for (int i = 0; i < 4; i++) {  // a[4 g + i]: rows 4 g.., column i of each 128-bit lane
    const __m512 lo = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), hi = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
    const __m512 lo2 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd),
                 hi2 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
    _mm512_storeu_ps(to + (i)*ldt, _mm512_shuffle_f32x4(lo, hi, 0x88));
    _mm512_storeu_ps(to + (8 + i) * ldt, _mm512_shuffle_f32x4(lo, hi, 0xdd));
    _mm512_storeu_ps(to + (4 + i) * ldt, _mm512_shuffle_f32x4(lo2, hi2, 0x88));
    _mm512_storeu_ps(to + (12 + i) * ldt, _mm512_shuffle_f32x4(lo2, hi2, 0xdd));
  }
}
#else
inline void transpose16(const float* const* from, int64_t column, float* to, int64_t ldt) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) to[j * ldt + i] = from[i][column + j];
}
#endif

struct Group { int64_t start, stop; };

template <typename T> struct Attention {
  const T* q;
  const T *k_cache, *v_cache;
  const int64_t *tables, *row_seq, *first, *last;
  int64_t table_width, block_size, rows, heads, kv_heads, dim;
  float scale;
  T* out;

  int64_t columns() const { return (dim + Column<T>::dims - 1) / Column<T>::dims; }
  int64_t padded_columns() const { return (columns() + 15) / 16 * 16; }
  int64_t padded_dim() const { return (dim + 15) / 16 * 16; }

  // Scratch of one thread; sized for the largest group.
  struct Scratch {
    std::vector<float> strip, zeros, keys, query, sums, top, total;
    std::vector<T> tail;
    const T* values[KEYS];
  };

  void prepare(Scratch& s, int64_t queries) const {
    s.strip.resize(size_t(16 * padded_columns()));
    s.zeros.assign(size_t(padded_columns()), 0.f);
    s.keys.resize(size_t(padded_columns() * KEYS));
    s.query.resize(size_t(queries * columns()));
    s.sums.assign(size_t(queries * padded_dim()), 0.f);
    s.top.assign(size_t(queries), NONE);
    s.total.assign(size_t(queries), 0.f);
    s.tail.resize(size_t(KEYS * padded_dim()));
  }

  // Lay out keys `from`..`to` (positions of one block of 64 at `base`) of kv head `kv`; keys outside read as zero.
  void load_block(Scratch& s, int64_t seq, int64_t kv, int64_t base, int64_t from, int64_t to) const {
    const int64_t n = padded_columns();
    const bool direct = dim * int64_t(sizeof(T)) == n * 4;  // the cache's own rows are columns already
    const int64_t* table = tables + seq * table_width;
    int64_t page = base / block_size, offset = base % block_size;
    for (int64_t j0 = 0; j0 < KEYS; j0 += 16) {
      const float* strips[16];
      for (int64_t j = j0; j < j0 + 16; j++) {
        strips[j - j0] = s.zeros.data();
        if (base + j >= from && base + j <= to) {
          const int64_t at = ((table[page] * block_size + offset) * kv_heads + kv) * dim;
          if (direct) strips[j - j0] = (const float*)(k_cache + at);
          else strips[j - j0] = to_columns(k_cache + at, dim, s.strip.data() + (j - j0) * n, n);
          s.values[j] = dim % 16 ? padded_value(s, v_cache + at, j) : v_cache + at;
        }
        if (++offset == block_size) offset = 0, page++;
      }
      for (int64_t c = 0; c < n; c += 16) transpose16(strips, c, s.keys.data() + c * KEYS + j0, KEYS);
    }
  }

  const T* padded_value(Scratch& s, const T* v, int64_t j) const {  // the loop over values reads whole registers
    T* copy = s.tail.data() + j * padded_dim();
    std::fill(std::copy(v, v + dim, copy), copy + padded_dim(), T(0));
    return copy;
  }

  template <int H> void scores(const Scratch& s, int64_t query, F16 (&p)[H][4]) const {
    F16 sum[H][4];
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) sum[h][i] = f16_zero();
    const float *key = s.keys.data(), *x = s.query.data() + query * columns();
    const int64_t n = columns();
    for (int64_t c = 0; c < n; c++, key += KEYS)
#pragma GCC unroll 4
      for (int h = 0; h < H; h++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[h][i] = score_step<T>(key + 16 * i, x[h * n + c], sum[h][i]);
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) p[h][i] = sum[h][i] * f16_set(scale);
  }

  // Scores -> weights of keys lo..hi of the block (0 elsewhere); returns what older sums are to be multiplied by.
  static F16 softmax_step(F16 (&v)[4], int lo, int hi, float& top, float& total) {
    const bool whole = lo == 0 && hi == KEYS - 1;
    if (!whole)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) v[i] = f16_keep(v[i], lo - 16 * i, hi - 16 * i, NONE);
    const float best = f16_hmax(f16_max(f16_max(v[0], v[1]), f16_max(v[2], v[3])));
    const float now = best > top ? best : top;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = f16_exp(v[i] - f16_set(now));
    if (!whole)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) v[i] = f16_keep(v[i], lo - 16 * i, hi - 16 * i, 0.f);
    const F16 factor = f16_exp(f16_set(top - now));
    total = f16_first(f16_fma(f16_set(total), factor, f16_set(f16_sum((v[0] + v[1]) + (v[2] + v[3])))));
    top = now;
    return factor;
  }

  template <int H, int C>  // C registers of the head dimension
  void values(const Scratch& s, int64_t d, float* sums, const float (*p)[KEYS], const F16 (&factor)[H], int lo,
              int hi) const {
    F16 acc[H][C];
    const int64_t ld = padded_dim();
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) acc[h][c] = f16_load(sums + h * ld + d + 16 * c) * factor[h];
    for (int j = lo; j <= hi; j++) {
      const T* v = s.values[j] + d;
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        const F16 x = f16_load(v + 16 * c);
#pragma GCC unroll 4
        for (int h = 0; h < H; h++) acc[h][c] = f16_fma(x, f16_set(p[h][j]), acc[h][c]);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; h++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) f16_store(sums + h * ld + d + 16 * c, acc[h][c]);
  }

  // H query heads of one row against the block in scratch.
  template <int H> void heads_step(Scratch& s, int64_t query, int lo, int hi) const {
    F16 v[H][4], factor[H];
    float p[H][KEYS];
    scores<H>(s, query, v);
#pragma GCC unroll 4
    for (int h = 0; h < H; h++) {
      factor[h] = softmax_step(v[h], lo, hi, s.top[size_t(query + h)], s.total[size_t(query + h)]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) f16_store(p[h] + 16 * i, v[h][i]);
    }
    float* sums = s.sums.data() + query * padded_dim();
    int64_t d = 0;
    for (; d + 64 <= padded_dim(); d += 64) values<H, 4>(s, d, sums, p, factor, lo, hi);
    for (; d < padded_dim(); d += 16) values<H, 1>(s, d, sums, p, factor, lo, hi);
  }

  void row_step(Scratch& s, int64_t query, int64_t n, int lo, int hi) const {
    for (; n > 0; query += HEADS_AT_ONCE, n -= HEADS_AT_ONCE) {
      if (HEADS_AT_ONCE == 1 || n == 1) heads_step<1>(s, query, lo, hi);
      else if (n == 2) heads_step<2>(s, query, lo, hi);
      else if (n == 3) heads_step<3>(s, query, lo, hi);
      else heads_step<4>(s, query, lo, hi);
    }
  }

  // Query heads h0 .. h0 + n - 1 (all of kv head `kv`) of one group of rows.
  void item(Scratch& s, Group group, int64_t kv, int64_t h0, int64_t n) const {
    prepare(s, (group.stop - group.start) * n);
    int64_t from = std::numeric_limits<int64_t>::max(), to = -1;
    for (int64_t r = group.start; r < group.stop; r++) {
      if (last[r] < first[r]) continue;
      from = std::min(from, first[r]);
      to = std::max(to, last[r]);
      for (int64_t h = 0; h < n; h++)
        to_columns(q + (r * heads + h0 + h) * dim, dim, s.query.data() + ((r - group.start) * n + h) * columns(),
                   columns());
    }
    for (int64_t base = from / KEYS * KEYS; base <= to; base += KEYS) {
      load_block(s, row_seq[group.start], kv, base, from, to);
      for (int64_t r = group.start; r < group.stop; r++) {
        const int64_t lo = std::max(first[r] - base, int64_t(0)), hi = std::min(last[r] - base, int64_t(KEYS - 1));
        if (lo <= hi) row_step(s, (r - group.start) * n, n, int(lo), int(hi));
      }
    }
    for (int64_t r = group.start; r < group.stop; r++)
      for (int64_t h = 0; h < n; h++) finish(s, (r - group.start) * n + h, out + (r * heads + h0 + h) * dim);
  }

  void finish(const Scratch& s, int64_t query, T* to) const {
    const float total = s.total[size_t(query)];
    const F16 inverse = f16_set(total == 0.f ? 0.f : 1.f / total);  // 0: a padding row, which saw no key
    const float* sums = s.sums.data() + query * padded_dim();
    for (int64_t d = 0; d < dim; d += 16) {
      const F16 y = f16_load(sums + d) * inverse;
      if (dim - d >= 16) f16_store(to + d, y);
      else f16_store_n(to + d, y, int(dim - d));
    }
  }

  void run() const {
    std::vector<Group>& groups = thread_own<std::vector<Group>>();
    groups.clear();
    double work = 0;
    for (int64_t r = 0; r < rows; r++) {
      work += double(std::max(last[r] - first[r] + 1, int64_t(0))) * double(heads * dim);
      const bool joins = r > 0 && row_seq[r] == row_seq[r - 1] && r - groups.back().start < GROUP_ROWS;
      if (joins) groups.back().stop = r + 1;
      else groups.push_back({r, r + 1});
    }
    // Few items: share a kv head's query heads between threads as well (its keys are then laid out more than once).
    const int64_t per_kv = heads / kv_heads, threads = work < double(PARALLEL_WORK) ? 1 : omp_get_max_threads();
    const int64_t whole = int64_t(groups.size()) * kv_heads;
    const int64_t parts = std::min(per_kv, whole >= threads ? 1 : (threads + whole - 1) / std::max(whole, int64_t(1)));
    auto one = [&](int64_t i) {
      const int64_t part = i % parts, kv = i / parts % kv_heads;
      const int64_t h0 = per_kv * part / parts, h1 = per_kv * (part + 1) / parts;
      item(thread_own<Scratch>(), groups[size_t(i / parts / kv_heads)], kv, kv * per_kv + h0, h1 - h0);
    };
    const int64_t items = whole * parts;
    if (threads == 1) {
      for (int64_t i = 0; i < items; i++) one(i);
      return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(int(threads))
    for (int64_t i = 0; i < items; i++) one(i);
  }
};

}  // namespace

// Whether every row reads inside its table, and every block that it reads inside the cache.
static bool in_bounds(const int64_t* tables, int64_t sequences, int64_t table_width, int64_t blocks,
                      int64_t block_size, const int64_t* row_seq, const int64_t* first, const int64_t* last,
                      int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    if (last[r] < first[r]) continue;
    if (row_seq[r] < 0 || row_seq[r] >= sequences || first[r] < 0) return false;
    if (last[r] / block_size >= table_width) return false;
    if (r > 0 && row_seq[r] == row_seq[r - 1] && first[r] >= first[r - 1] && last[r] <= last[r - 1]) continue;
    const int64_t* table = tables + row_seq[r] * table_width;
    for (int64_t b = first[r] / block_size; b <= last[r] / block_size; b++)
      if (table[b] < 0 || table[b] >= blocks) return false;
  }
  return true;
}

// Returns 0, or 1 (and computes nothing) where an index is out of bounds.
PACELINE_API int64_t attention_run(int64_t is_bf16, const void* q, const void* k_cache, const void* v_cache,
                                   const int64_t* tables, int64_t sequences, int64_t table_width, int64_t blocks,
                                   int64_t block_size, const int64_t* row_seq, const int64_t* first,
                                   const int64_t* last, int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                                   float scale, void* out) {
  if (!in_bounds(tables, sequences, table_width, blocks, block_size, row_seq, first, last, rows)) return 1;
  if (is_bf16)
    Attention<bf16>{(const bf16*)q, (const bf16*)k_cache, (const bf16*)v_cache, tables, row_seq, first, last,
                    table_width, block_size, rows, heads, kv_heads, dim, scale, (bf16*)out}.run();
  else
    Attention<float>{(const float*)q, (const float*)k_cache, (const float*)v_cache, tables, row_seq, first, last,
                     table_width, block_size, rows, heads, kv_heads, dim, scale, (float*)out}.run();
  return 0;
}
