// Gated delta rule with replay windows on the CPU: conv + SiLU, gates, l2 norms, recurrence and gated norm in one
// pass over a row's inputs. One unit of work is (sequence, key head) with the value heads that read this key head.
//
// Determinism: a unit's arithmetic depends on its own rows alone, sums run over dk in ascending order with one
// accumulator a column, and the same `advance` serves replay, window, prefill and commit. So neither the grouping of
// rows into windows, nor company in the batch, nor the number of threads changes a bit.
//
// The recurrence S <- e^g S;  delta = beta (v - S^T k);  S <- S + k delta^T;  o = S^T q  is fused across rows: while
// row t updates a tile of S it also reads out o_t and the product with k_{t+1} that row t+1 starts from, so that each
// row costs one pass over the tile. A tile is dk x (16..64) columns, sized to stay in the L1 cache.
#include "simd.h"

#include <algorithm>
#include <vector>

PACELINE_EXPORT_ISA

namespace {

constexpr int kLanes = 16;
constexpr int kMaxWidth = 8;               // of the conv kernel
constexpr int kMaxVectors = 4;             // a tile is at most 64 columns wide
constexpr int64_t kTileFloats = 4096;      // 16 KiB of state a tile: half of a small L1 cache
constexpr int64_t kPrefillBlock = 64;      // rows whose inputs are prepared at once
constexpr int64_t kParallelWork = 40000;   // multiply-adds (x16 lanes) below which waking a thread costs more
constexpr float kL2Eps = 1e-6f;

inline int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

}  // namespace

// The three structures are packed by cpu.py: same fields, same order.
struct DeltaWeights {
  const float* conv;     // [width, conv_dim]
  const float* rate;     // [Hv] -exp(A_log)
  const float* dt_bias;  // [Hv]
  const float* norm;     // [dv]
  double eps;
  int64_t Hk, Hv, dk, dv, width;
};

struct DeltaState {
  float* state;          // [slots, Hv, dk, dv]
  void* k_rows;          // [slots, W, Hk, dk]
  void* v_rows;          // [slots, W, Hv, dv]
  float* g_rows;         // [slots, W, Hv]
  float* beta_rows;      // [slots, W, Hv]
  void* conv_rows;       // [slots, width - 1 + W, conv_dim]
  int64_t slots, W, Hk, Hv, dk, dv, width, is_bf16;
};

struct DeltaRows {       // one call
  const void *qkv, *z, *b, *a;
  void* out;             // [rows, Hv * dv]
  int64_t qkv_stride, z_stride, b_stride, a_stride;  // elements between rows
  const int64_t *slots, *row_start, *row_count;      // [S]
  const int64_t* pending;  // [S], window only
  const bool* fresh;       // [S], prefill only
  int64_t S, rows, max_rows;
};

namespace {

// Inputs of the recurrence for one unit: replayed rows first, then new ones. Scratch memory of the thread.
struct Unit {
  int64_t dk, dv, dkp, dvp, ratio, steps, capacity;
  std::vector<float> memory;
  float *q, *k, *v, *decay, *beta, *o, *tile, *edge;

  void reserve(int64_t dk_, int64_t dv_, int64_t ratio_, int64_t capacity_) {
    dk = dk_, dv = dv_, ratio = ratio_, capacity = capacity_;
    dkp = padded(dk), dvp = padded(dv);
    const int64_t tile_size = dk * kMaxVectors * kLanes;
    const int64_t row = 2 * dkp + ratio * dvp + dvp + 2 * ratio;
    const size_t need = size_t(capacity * row + 2 * tile_size + kLanes);
    if (memory.size() < need) memory.resize(need);
    float* p = (float*)((uintptr_t(memory.data()) + 63) / 64 * 64);
    auto take = [&](int64_t n) { float* r = p; p += n; return r; };
    tile = take(tile_size);
    edge = take(tile_size);
    q = take(capacity * dkp);
    k = take(capacity * dkp);
    v = take(capacity * ratio * dvp);
    o = take(capacity * dvp);
    decay = take(capacity * ratio);
    beta = take(capacity * ratio);
  }
  float* q_row(int64_t t) { return q + t * dkp; }
  float* k_row(int64_t t) { return k + t * dkp; }
  float* v_row(int64_t t, int64_t j) { return v + (t * ratio + j) * dvp; }
};

Unit& thread_unit() {
  static thread_local Unit unit;
  return unit;
}

// ---------------------------------------------------------------- inputs of the recurrence

template <typename T> inline F16 load_some(const T* p, int64_t n) {
  return n >= kLanes ? f16_load(p) : f16_load_n(p, int(n));
}
template <typename T> inline void store_some(T* p, F16 x, int64_t n) {
  if (n >= kLanes) f16_store(p, x);
  else f16_store_n(p, x, int(n));
}

inline F16 silu(F16 x) { return x / (f16_set(1.f) + f16_exp(f16_zero() - x)); }

// x * rsqrt(sum x^2 + eps) * scale in place over the padded row; the padding is zero.
inline void l2norm(float* x, int64_t dkp, float scale) {
  F16 sum = f16_zero();
  for (int64_t c = 0; c < dkp; c += kLanes) {
    const F16 e = f16_load(x + c);
    sum = f16_fma(e, e, sum);
  }
  const F16 inverse = f16_set(1.f / std::sqrt(f16_sum(sum) + kL2Eps)), s = f16_set(scale);
  for (int64_t c = 0; c < dkp; c += kLanes) f16_store(x + c, f16_load(x + c) * inverse * s);
}

// Where a sequence's conv inputs come from and where they go.
template <typename T> struct ConvRows {
  const T* past;      // [history, conv_dim], oldest first; nullptr: zeros
  const T* input;     // first new row
  int64_t stride;     // between new rows
  int64_t count;      // new rows
  int64_t conv_dim, history;
  T* keep;            // history and new rows are stored from here, conv_dim apart; nullptr: not stored
};

// Conv + SiLU of `n` channels from `channel` on, for all new rows: fp32 values to dst (row stride dst_stride, zero
// padded to 16), and in T to `stored` (row stride stored_stride) unless that is nullptr. Width 0: known at run time.
template <typename T, int Width>
void conv_channels(const ConvRows<T>& rows, const float* taps, int64_t channel, int64_t n, float* dst,
                   int64_t dst_stride, T* stored, int64_t stored_stride) {
  const int width = Width ? Width : int(rows.history) + 1;
  F16 w[Width ? Width : kMaxWidth], x[Width ? Width : kMaxWidth];
  for (int64_t c = 0; c < n; c += kLanes) {
    const int64_t at = channel + c, left = n - c;
    for (int j = 0; j < width; j++) w[j] = load_some(taps + j * rows.conv_dim + at, left);
    for (int j = 0; j + 1 < width; j++)
      x[j] = rows.past ? load_some(rows.past + j * rows.conv_dim + at, left) : f16_zero();
    // `past` may overlap `keep`: all of it is in registers before the first store.
    if (rows.keep)
      for (int j = 0; j + 1 < width; j++) store_some(rows.keep + j * rows.conv_dim + at, x[j], left);
    for (int64_t r = 0; r < rows.count; r++) {
      x[width - 1] = load_some(rows.input + r * rows.stride + at, left);
      if (rows.keep) store_some(rows.keep + (width - 1 + r) * rows.conv_dim + at, x[width - 1], left);
      F16 sum = x[0] * w[0];
      for (int j = 1; j < width; j++) sum = f16_fma(x[j], w[j], sum);
      for (int j = 0; j + 1 < width; j++) x[j] = x[j + 1];
      const F16 y = f16_rounded<T>(silu(f16_rounded<T>(sum)));
      f16_store(dst + r * dst_stride + c, y);
      if (stored) store_some(stored + r * stored_stride + c, y, left);
    }
  }
}

inline float softplus(float x) { return x > 20.f ? x : std::log1p(std::exp(x)); }

// New rows `first..first+count` of a call -> steps `at..` of the unit; stored for a later replay if `st` is given.
template <typename T>
void prepare_rows(Unit& u, const DeltaWeights& w, const DeltaRows& in, const ConvRows<T>& rows, int64_t head,
                  int64_t first, int64_t at, const DeltaState* st, int64_t slot) {
  const int64_t key = w.Hk * w.dk, v0 = head * u.ratio, window = st ? slot * st->W : 0;
  T* keys = st ? (T*)st->k_rows + (window * w.Hk + head) * w.dk : nullptr;
  auto conv = w.width == 4 ? conv_channels<T, 4> : conv_channels<T, 0>;
  conv(rows, w.conv, head * w.dk, w.dk, u.q_row(at), u.dkp, nullptr, 0);
  conv(rows, w.conv, key + head * w.dk, w.dk, u.k_row(at), u.dkp, keys, w.Hk * w.dk);
  for (int64_t j = 0; j < u.ratio; j++) {
    T* values = st ? (T*)st->v_rows + (window * w.Hv + v0 + j) * w.dv : nullptr;
    conv(rows, w.conv, 2 * key + (v0 + j) * w.dv, w.dv, u.v_row(at, j), u.ratio * u.dvp, values, w.Hv * w.dv);
  }
  const float scale = 1.f / std::sqrt(float(w.dk));
  for (int64_t r = 0; r < rows.count; r++) {
    l2norm(u.q_row(at + r), u.dkp, scale);
    l2norm(u.k_row(at + r), u.dkp, 1.f);
    const T* b = (const T*)in.b + (first + r) * in.b_stride + v0;
    const T* a = (const T*)in.a + (first + r) * in.a_stride + v0;
    for (int64_t j = 0; j < u.ratio; j++) {
      const float beta = rounded<T>(1.f / (1.f + std::exp(-to_f32(b[j]))));
      const float g = w.rate[v0 + j] * softplus(to_f32(a[j]) + w.dt_bias[v0 + j]);
      u.beta[(at + r) * u.ratio + j] = beta;
      u.decay[(at + r) * u.ratio + j] = std::exp(g);
      if (st) {
        st->beta_rows[(window + r) * w.Hv + v0 + j] = beta;
        st->g_rows[(window + r) * w.Hv + v0 + j] = g;
      }
    }
  }
}

// Stored rows 0..count-1 of a slot -> the unit's first steps: key head `head`, value heads v0..v0+ratio-1.
template <typename T>
void load_stored(Unit& u, const DeltaState& st, int64_t slot, int64_t head, int64_t v0, int64_t count) {
  for (int64_t r = 0; r < count; r++) {
    const int64_t row = slot * st.W + r;
    const T* k = (const T*)st.k_rows + (row * st.Hk + head) * st.dk;
    for (int64_t c = 0; c < st.dk; c += kLanes) f16_store(u.k_row(r) + c, load_some(k + c, st.dk - c));
    l2norm(u.k_row(r), u.dkp, 1.f);
    for (int64_t j = 0; j < u.ratio; j++) {
      const T* v = (const T*)st.v_rows + (row * st.Hv + v0 + j) * st.dv;
      for (int64_t c = 0; c < st.dv; c += kLanes) f16_store(u.v_row(r, j) + c, load_some(v + c, st.dv - c));
      u.beta[r * u.ratio + j] = st.beta_rows[row * st.Hv + v0 + j];
      u.decay[r * u.ratio + j] = std::exp(st.g_rows[row * st.Hv + v0 + j]);
    }
  }
}

// ---------------------------------------------------------------- the recurrence on one tile of columns

template <int N> struct Columns { F16 v[N]; };

template <int N> inline Columns<N> read_out(const float* s, int64_t stride, const float* k, int64_t dk) {
  Columns<N> sum;
  for (int c = 0; c < N; c++) sum.v[c] = f16_zero();
  for (int64_t i = 0; i < dk; i++) {
    const F16 ki = f16_set(k[i]);
    for (int c = 0; c < N; c++) sum.v[c] = f16_fma(ki, f16_load(s + i * stride + c * kLanes), sum.v[c]);
  }
  return sum;
}

// One row on a tile: dst = decay * src + k delta^T; o = dst^T q; returns dst^T next for the row after it.
template <int N, bool Store, bool Out, bool Next>
inline Columns<N> row_pass(const float* src, int64_t src_stride, float* dst, int64_t dst_stride, const float* k,
                           const float* q, const float* next, int64_t dk, F16 decay, const Columns<N>& delta,
                           float* o) {
  Columns<N> out, ahead;
  for (int c = 0; c < N; c++) out.v[c] = ahead.v[c] = f16_zero();
  for (int64_t i = 0; i < dk; i++) {
    const F16 ki = f16_set(k[i]);
    const F16 qi = Out ? f16_set(q[i]) : ki;
    const F16 ni = Next ? f16_set(next[i]) : ki;
    for (int c = 0; c < N; c++) {
      const F16 s = f16_fma(ki, delta.v[c], decay * f16_load(src + i * src_stride + c * kLanes));
      if (Store) f16_store(dst + i * dst_stride + c * kLanes, s);
      if (Out) out.v[c] = f16_fma(qi, s, out.v[c]);
      if (Next) ahead.v[c] = f16_fma(ni, s, ahead.v[c]);
    }
  }
  if (Out)
    for (int c = 0; c < N; c++) f16_store(o + c * kLanes, out.v[c]);
  return ahead;
}

// Steps of a unit for value head j (within the unit) on columns col..col+16N of the state at `src`. The first `replay`
// steps, and with `keep` the later ones too, end up in `dst` (may be src); else later steps leave no trace but u.o.
template <int N>
void advance(Unit& u, int64_t j, int64_t col, const float* src, int64_t src_stride, float* dst, int64_t dst_stride,
             int64_t replay, bool keep) {
  if (u.steps == 0) return;
  Columns<N> seen = read_out<N>(src, src_stride, u.k_row(0), u.dk);
  for (int64_t t = 0; t < u.steps; t++) {
    const F16 decay = f16_set(u.decay[t * u.ratio + j]), beta = f16_set(u.beta[t * u.ratio + j]);
    Columns<N> delta;
    for (int c = 0; c < N; c++)
      delta.v[c] = beta * (f16_load(u.v_row(t, j) + col + c * kLanes) - decay * seen.v[c]);
    const bool is_new = t >= replay, last = t + 1 == u.steps;
    float* to = is_new && !keep ? u.tile : dst;
    const int64_t to_stride = is_new && !keep ? N * kLanes : dst_stride;
    const float *k = u.k_row(t), *q = u.q_row(t), *next = u.k_row(t + 1);
    float* o = is_new ? u.o + (t - replay) * u.dvp + col : nullptr;
#define PASS(STORE, OUT, NEXT) \
  row_pass<N, STORE, OUT, NEXT>(src, src_stride, to, to_stride, k, q, next, u.dk, decay, delta, o)
    if (!is_new) seen = last ? PASS(true, false, false) : PASS(true, false, true);
    else if (!last) seen = PASS(true, true, true);
    else if (keep) PASS(true, true, false);
    else PASS(false, true, false);
#undef PASS
    src = to, src_stride = to_stride;
  }
}

template <int N>
void advance_edge(Unit& u, int64_t j, int64_t col, const float* src, float* dst, int64_t replay, bool keep) {
  // Columns that do not fill a register go through a padded copy.
  const int64_t left = u.dv - col, stride = N * kLanes;
  std::fill(u.edge, u.edge + u.dk * stride, 0.f);
  for (int64_t i = 0; i < u.dk; i++) std::copy_n(src + i * u.dv + col, left, u.edge + i * stride);
  advance<N>(u, j, col, u.edge, stride, u.edge, stride, replay, keep);
  if (replay > 0 || keep)
    for (int64_t i = 0; i < u.dk; i++) std::copy_n(u.edge + i * stride, left, dst + i * u.dv + col);
}

// All columns of one value head: state at src [dk, dv] -> dst.
void advance_head(Unit& u, int64_t j, const float* src, float* dst, int64_t replay, bool keep) {
  const int64_t fit = kTileFloats / (u.dk * kLanes);
  const int64_t vectors = fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  for (int64_t col = 0; col < u.dv;) {
    const int64_t whole = std::min((u.dv - col) / kLanes, vectors);
    const int64_t n = whole >= 4 ? 4 : whole >= 2 ? 2 : 1;
    if (whole == 0) advance_edge<1>(u, j, col, src, dst, replay, keep);
    else if (n == 4) advance<4>(u, j, col, src + col, u.dv, dst + col, u.dv, replay, keep);
    else if (n == 2) advance<2>(u, j, col, src + col, u.dv, dst + col, u.dv, replay, keep);
    else advance<1>(u, j, col, src + col, u.dv, dst + col, u.dv, replay, keep);
    col += n * kLanes;
  }
}

// ---------------------------------------------------------------- output

// u.o rows 0..count-1 of value head `head` -> out rows first..: RMS norm, plain weight, SiLU gate.
template <typename T>
void gated_norm(Unit& u, const DeltaWeights& w, const DeltaRows& in, int64_t head, int64_t first, int64_t count) {
  for (int64_t r = 0; r < count; r++) {
    const T* z = (const T*)in.z + (first + r) * in.z_stride + head * w.dv;
    T* out = (T*)in.out + ((first + r) * w.Hv + head) * w.dv;
    float* o = u.o + r * u.dvp;
    F16 sum = f16_zero();
    for (int64_t c = 0; c < u.dvp; c += kLanes) {  // padded columns are zero: no value and no state feeds them
      const F16 x = f16_rounded<T>(f16_load(o + c));
      f16_store(o + c, x);
      sum = f16_fma(x, x, sum);
    }
    const F16 inverse = f16_set(1.f / std::sqrt(f16_sum(sum) / float(w.dv) + float(w.eps)));
    for (int64_t c = 0; c < w.dv; c += kLanes) {
      const int64_t left = w.dv - c;
      const F16 scaled = f16_rounded<T>(load_some(w.norm + c, left) * f16_rounded<T>(f16_load(o + c) * inverse));
      store_some(out + c, scaled * silu(load_some(z + c, left)), left);
    }
  }
}

// ---------------------------------------------------------------- units of work

template <typename T>
void window_unit(const DeltaWeights& w, const DeltaState& st, const DeltaRows& in, int64_t head, int64_t slot,
                 int64_t pending, int64_t first, int64_t count) {
  Unit& u = thread_unit();
  const int64_t ratio = w.Hv / w.Hk, conv_dim = 2 * w.Hk * w.dk + w.Hv * w.dv, history = w.width - 1;
  u.reserve(w.dk, w.dv, ratio, 2 * st.W + 1);
  load_stored<T>(u, st, slot, head, head * ratio, pending);  // before the new rows overwrite them
  T* conv = (T*)st.conv_rows + slot * (history + st.W) * conv_dim;
  const ConvRows<T> rows{conv + pending * conv_dim, (const T*)in.qkv + first * in.qkv_stride, in.qkv_stride, count,
                         conv_dim, history, conv};
  prepare_rows<T>(u, w, in, rows, head, first, pending, &st, slot);
  u.steps = pending + count;
  for (int64_t j = 0; j < ratio; j++) {
    const int64_t value_head = head * ratio + j;
    float* state = st.state + (slot * w.Hv + value_head) * w.dk * w.dv;
    advance_head(u, j, state, state, pending, false);
    gated_norm<T>(u, w, in, value_head, first, count);
  }
}

template <typename T>
void prefill_unit(const DeltaWeights& w, const DeltaState& st, const DeltaRows& in, int64_t head, int64_t slot,
                  bool fresh, int64_t first, int64_t count) {
  Unit& u = thread_unit();
  const int64_t ratio = w.Hv / w.Hk, conv_dim = 2 * w.Hk * w.dk + w.Hv * w.dv, history = w.width - 1;
  u.reserve(w.dk, w.dv, ratio, kPrefillBlock + 1);
  const T* qkv = (const T*)in.qkv + first * in.qkv_stride;
  T* conv = (T*)st.conv_rows + slot * (history + st.W) * conv_dim;
  float* state = st.state + (slot * w.Hv + head * ratio) * w.dk * w.dv;
  if (fresh) std::fill(state, state + ratio * w.dk * w.dv, 0.f);

  std::vector<T> past(size_t(history * conv_dim));  // inputs before the block; only this unit's channels are used
  const int64_t key = w.Hk * w.dk;
  const int64_t spans[3][2] = {{head * w.dk, w.dk}, {key + head * w.dk, w.dk},
                               {2 * key + head * ratio * w.dv, ratio * w.dv}};
  auto copy_rows = [&](const T* src, int64_t src_stride, T* dst) {
    for (int64_t r = 0; r < history; r++)
      for (auto& span : spans) std::copy_n(src + r * src_stride + span[0], span[1], dst + r * conv_dim + span[0]);
  };
  if (!fresh) copy_rows(conv, conv_dim, past.data());
  for (int64_t done = 0; done < count; done += kPrefillBlock) {
    const int64_t n = std::min(kPrefillBlock, count - done);
    const ConvRows<T> rows{past.data(), qkv + done * in.qkv_stride, in.qkv_stride, n, conv_dim, history, nullptr};
    prepare_rows<T>(u, w, in, rows, head, first + done, 0, nullptr, 0);
    u.steps = n;
    for (int64_t j = 0; j < ratio; j++) {
      float* s = state + j * w.dk * w.dv;
      advance_head(u, j, s, s, 0, true);
      gated_norm<T>(u, w, in, head * ratio + j, first + done, n);
    }
    const int64_t kept = std::max<int64_t>(history - n, 0);  // a short block leaves some of the old history
    for (int64_t r = 0; r < kept; r++)
      for (auto& span : spans)
        std::copy_n(past.data() + (r + n) * conv_dim + span[0], span[1], past.data() + r * conv_dim + span[0]);
    for (int64_t r = kept; r < history; r++)
      for (auto& span : spans)
        std::copy_n(qkv + (done + n - history + r) * in.qkv_stride + span[0], span[1],
                    past.data() + r * conv_dim + span[0]);
  }
  copy_rows(past.data(), conv_dim, conv);
}

template <typename T>
void commit_unit(const DeltaState& st, int64_t head, int64_t src, int64_t dst, int64_t count) {
  Unit& u = thread_unit();
  const int64_t ratio = st.Hv / st.Hk, conv_dim = 2 * st.Hk * st.dk + st.Hv * st.dv, history = st.width - 1;
  u.reserve(st.dk, st.dv, ratio, st.W + 1);
  const int64_t size = st.dk * st.dv, v0 = head * ratio;
  const float* from = st.state + (src * st.Hv + v0) * size;
  float* to = st.state + (dst * st.Hv + v0) * size;
  load_stored<T>(u, st, src, head, v0, count);
  u.steps = count;
  if (count == 0 && src != dst) std::copy_n(from, ratio * size, to);
  for (int64_t j = 0; j < ratio && count > 0; j++) advance_head(u, j, from + j * size, to + j * size, count, false);
  if (head > 0) return;
  const int64_t block = (history + st.W) * conv_dim;
  const T* old = (const T*)st.conv_rows + src * block + count * conv_dim;
  std::memmove((T*)st.conv_rows + dst * block, old, size_t(history * conv_dim) * sizeof(T));
}

// True if the rows, slots and counts of a call stay inside its tensors.
bool in_range(const DeltaState& st, const DeltaRows& in, int64_t longest) {
  for (int64_t i = 0; i < in.S; i++) {
    const int64_t slot = in.slots[i], count = in.row_count[i];
    if (slot < 0 || slot >= st.slots) return false;
    if (slot == 0) continue;
    if (count < 0 || count > longest) return false;
    if (count > 0 && (in.row_start[i] < 0 || in.row_start[i] + count > in.rows)) return false;
    if (in.pending && (in.pending[i] < 0 || in.pending[i] > st.W)) return false;
  }
  return true;
}

// Rows that belong to no sequence read as zero.
void clear_padding(const DeltaState& st, const DeltaRows& in) {
  int64_t live = 0;
  for (int64_t i = 0; i < in.S; i++) live += in.slots[i] > 0 ? in.row_count[i] : 0;
  const size_t bytes = size_t(in.rows * st.Hv * st.dv) * (st.is_bf16 ? 2 : 4);
  if (live < in.rows) std::memset(in.out, 0, bytes);
}

template <typename F> void over_units(int64_t S, int64_t heads, int64_t work, F&& unit) {
  if (S * heads < 2 || work <= kParallelWork) {
    for (int64_t i = 0; i < S * heads; i++) unit(i / heads, i % heads);
    return;
  }
  if (S == 1) {  // all alike; handing out one by one takes 25 us where cores are far apart (measured: Zen 4, two CCDs)
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < heads; i++) unit(0, i);
    return;
  }
  if (S == 1) {  // all alike: handing them out one by one costs 20 us where cores do not share a cache
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < heads; i++) unit(0, i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)  // windows differ in length
  for (int64_t i = 0; i < S * heads; i++) unit(i / heads, i % heads);
}

int64_t pass_work(const DeltaState& st, int64_t passes) { return passes * st.Hv * st.dk * ((st.dv + 15) / 16) * 3; }

}  // namespace

// All return 0, or 1 without having touched anything if an index is out of range.

PACELINE_API int delta_window(const DeltaWeights* w, const DeltaState* st, const DeltaRows* in) {
  if (!in_range(*st, *in, std::min(in->max_rows, st->W))) return 1;
  clear_padding(*st, *in);
  int64_t passes = 0;
  for (int64_t i = 0; i < in->S; i++) passes += in->slots[i] > 0 ? 1 + in->pending[i] + in->row_count[i] : 0;
  over_units(in->S, st->Hk, pass_work(*st, passes), [&](int64_t i, int64_t head) {
    if (in->slots[i] == 0) return;
    auto unit = st->is_bf16 ? window_unit<bf16> : window_unit<float>;
    unit(*w, *st, *in, head, in->slots[i], in->pending[i], in->row_start[i], in->row_count[i]);
  });
  return 0;
}

PACELINE_API int delta_prefill(const DeltaWeights* w, const DeltaState* st, const DeltaRows* in) {
  if (!in_range(*st, *in, in->rows)) return 1;
  clear_padding(*st, *in);
  over_units(in->S, st->Hk, pass_work(*st, in->rows), [&](int64_t i, int64_t head) {
    if (in->slots[i] == 0 || in->row_count[i] == 0) return;
    auto unit = st->is_bf16 ? prefill_unit<bf16> : prefill_unit<float>;
    unit(*w, *st, *in, head, in->slots[i], in->fresh[i], in->row_start[i], in->row_count[i]);
  });
  return 0;
}

PACELINE_API int delta_commit(const DeltaState* st, const int64_t* src, const int64_t* dst, const int64_t* counts,
                              int64_t S) {
  for (int64_t i = 0; i < S; i++)
    if (src[i] < 0 || src[i] >= st->slots || dst[i] < 0 || dst[i] >= st->slots || counts[i] < 0 || counts[i] > st->W)
      return 1;
  int64_t passes = 0;
  for (int64_t i = 0; i < S; i++) passes += 1 + counts[i];
  over_units(S, st->Hk, pass_work(*st, passes), [&](int64_t i, int64_t head) {
    if (src[i] == 0 || dst[i] == 0) return;
    auto unit = st->is_bf16 ? commit_unit<bf16> : commit_unit<float>;
    unit(*st, head, src[i], dst[i], counts[i]);
  });
  return 0;
}
