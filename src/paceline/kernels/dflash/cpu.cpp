// The two passes of a DFlash drafter, each in one call: what models/dflash.py composes of some thirty operators. They
// are the same native operators, called here one after the other through their addresses, so every number is the same
// bit for bit. What is saved is the way back to Python between them, which costs more than most of them take.
#include "parallel.h"
#include "simd.h"
#include <algorithm>
#include <vector>
PACELINE_EXPORT_ISA

// The structures are filled by cpu.py: same fields, same order. "T" is the model's dtype.
struct Operators {  // exported by the libraries norm, attention and sample
  void (*norm)(int64_t, int64_t, float, int64_t, int64_t, const void*, int64_t, const void*, int64_t, const void*, void*,
               void*);
  void (*norm_rope)(int64_t, const void*, int64_t, int64_t, int64_t, int64_t, int64_t, const void*, float, int64_t,
                    const void*, const void*, int64_t, const int64_t*, void*);
  void (*store_kv)(const char*, int64_t, const char*, int64_t, char*, char*, const int64_t*, int64_t, int64_t);
  int64_t (*attention)(int64_t, const void*, const void*, const void*, const int64_t*, int64_t, int64_t, int64_t,
                       int64_t, const int64_t*, const int64_t*, const int64_t*, int64_t, int64_t, int64_t, int64_t,
                       float, void*);
  void (*greedy)(const float*, int64_t, int64_t, int64_t, int64_t*);
};

struct Product {  // a linear layer of either library, T to T
  void (*run)(const void*, int64_t, const void*, int64_t, int64_t, void*);
  const void* layer;
  int64_t kind, outs;
};

struct Layer {
  Product qkv, out, gated, down;  // gated: gates, ups and what they make
  const void *q_norm, *k_norm;        // null: heads without norms
  const void *post_norm, *following;  // the norms after attention and after the feed-forward
  int64_t window, causal;             // window 0: all positions
};

struct Drafter {
  Operators op;
  const Layer* layers;
  int64_t count;
  Product fc, context_kv;
  const void *hidden_norm, *first_norm, *cos, *sin;
  int64_t half, is_bf16, hidden, heads, kv_heads, dim, max_position, mask;
  double eps, scale;
};

struct Pages {  // of one layer, [blocks, block_size, kv_heads, dim]
  void *k, *v;
};

struct Block {  // one call of drafter_block
  const int64_t *anchors, *starts, *tables, *counts;  // counts null: every block is whole
  const void* embedding;                              // [vocab, hidden]
  int64_t sequences, table_width, blocks, block_size, vocab;
  int64_t rows, wanted, limit;  // of a block: rows, drafts that are asked for; where positions end
  void* hidden;                 // out [sequences * wanted, hidden]; null: the tokens are asked for
  int64_t* tokens;              // out [sequences * wanted]: the best of the head's first `ids` logits
  int64_t ids;
  Product head;                 // T to float
  const int64_t* asked;         // ids whose logits are wanted, [sequences, asked_stride]; null: none; negative: any
  int64_t asked_stride;
  float* leads;                 // out [sequences * wanted]: the best logit less the one asked for
};

namespace {

struct Scratch {
  std::vector<char> stream, normed, qkv, q, k, mixed, wide, act;
  std::vector<float> logits;
  std::vector<int64_t> positions, sequence, first, last, ends, slots;
};

template <typename V> void grow(V& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(size_t(n));
}

struct Pass {
  const Drafter& d;
  Scratch& s;
  int64_t size = d.is_bf16 ? 2 : 4;  // bytes of a T

  int64_t query_size() const { return d.heads * d.dim; }
  int64_t kv_size() const { return d.kv_heads * d.dim; }

  const char* product(const Product& p, const char* x, int64_t ldx, int64_t rows, std::vector<char>& out) const {
    grow(out, rows * p.outs * size);
    p.run(p.layer, p.kind, x, ldx, rows, out.data());
    return out.data();
  }

  // stream += x, normed = norm(stream); x null: the norm alone.
  void norm(const char* x, const void* weight, int64_t rows, void* normed) const {
    const int64_t n = d.hidden;
    char* stream = s.stream.data();
    if (x) d.op.norm(d.is_bf16, 0, float(d.eps), rows, n, x, n, stream, n, weight, normed, stream);
    else d.op.norm(d.is_bf16, 0, float(d.eps), rows, n, stream, n, nullptr, 0, weight, normed, nullptr);
  }

  char* rotated(const char* x, int64_t ldx, int64_t rows, int64_t heads, const void* weight, std::vector<char>& out) const {
    grow(out, rows * heads * d.dim * size);
    d.op.norm_rope(d.is_bf16, x, ldx, d.dim, rows, heads, d.dim, weight, float(d.eps), 0, d.cos, d.sin, d.half,
                   s.positions.data(), out.data());
    return out.data();
  }

  // Keys (to be normed and rotated) and values of `rows` rows, kv_size each, `ld` elements apart.
  void store(const char* k, const char* v, int64_t ld, int64_t rows, const void* k_norm, const Pages& kv,
             const int64_t* slots) const {
    const int64_t bytes = kv_size() * size;
    const char* keys = rotated(k, ld, rows, d.kv_heads, k_norm, s.k);
    d.op.store_kv(keys, bytes, v, ld * size, (char*)kv.k, (char*)kv.v, slots, rows, bytes);
  }
};

struct BlockPass : Pass {
  const Block& b;
  const Pages* kv;

  // As models/dflash_block.py: rows beyond a block's count or the limit are padding, which sees and is nothing.
  void lay_out() const {
    const int64_t total = b.sequences * b.rows;
    for (auto* v : {&s.positions, &s.sequence, &s.first, &s.last, &s.ends, &s.slots}) grow(*v, total);
    for (int64_t i = 0, r = 0; i < b.sequences; i++) {
      const int64_t rows = std::min(b.counts ? b.counts[i] : b.rows, b.limit - b.starts[i]);
      for (int64_t j = 0; j < b.rows; j++, r++) {
        const bool live = j < rows;
        const int64_t at = live ? b.starts[i] + j : 0, column = at / b.block_size;
        const int64_t page = live && column < b.table_width ? b.tables[i * b.table_width + column] : 0;
        s.positions[r] = at;
        s.sequence[r] = i;
        s.ends[r] = live ? b.starts[i] + rows - 1 : -1;
        s.slots[r] = live ? page * b.block_size + at % b.block_size : 0;
      }
    }
  }

  bool in_bounds() const {
    for (int64_t i = 0; i < b.sequences; i++)
      if (b.anchors[i] < 0 || b.anchors[i] >= b.vocab) return false;
    for (int64_t r = 0; r < b.sequences * b.rows; r++)
      if (s.slots[r] < 0 || s.slots[r] >= b.blocks * b.block_size) return false;
    for (int64_t r = 0; b.asked && r < b.sequences * b.wanted; r++)
      if (b.asked[r / b.wanted * b.asked_stride + r % b.wanted] >= b.head.outs) return false;
    return d.mask < b.vocab && b.wanted < b.rows;
  }

  void embed() const {
    const int64_t bytes = d.hidden * size;
    grow(s.stream, b.sequences * b.rows * bytes);
    for (int64_t r = 0; r < b.sequences * b.rows; r++) {
      const int64_t id = r % b.rows ? d.mask : b.anchors[r / b.rows];
      std::memcpy(s.stream.data() + r * bytes, (const char*)b.embedding + id * bytes, size_t(bytes));
    }
  }

  // What each row sees in a layer of this kind.
  void see(const Layer& layer, int64_t rows) const {
    for (int64_t r = 0; r < rows; r++) {
      const int64_t at = s.positions[r], end = s.ends[r];
      int64_t last = layer.causal && end >= 0 ? at : end;
      if (layer.window) last = std::min(last, at + layer.window - 1);
      s.first[r] = layer.window ? std::max(at - layer.window + 1, int64_t(0)) : 0;
      s.last[r] = last;
    }
  }

  // Of every block only the rows 1..wanted: nothing behind the last layer's keys needs the others.
  int64_t keep_wanted(const char*& qkv, int64_t ld) const {
    const int64_t bytes = d.hidden * size, q_bytes = query_size() * size, kept = b.sequences * b.wanted;
    grow(s.wide, kept * ld * size);
    for (int64_t i = 0; i < kept; i++) {
      const int64_t r = i / b.wanted * b.rows + 1 + i % b.wanted;
      std::memmove(s.stream.data() + i * bytes, s.stream.data() + r * bytes, size_t(bytes));
      std::memcpy(s.wide.data() + i * ld * size, qkv + r * ld * size, size_t(q_bytes));
      s.positions[i] = s.positions[r], s.sequence[i] = s.sequence[r], s.ends[i] = s.ends[r];
    }
    qkv = s.wide.data();
    return kept;
  }

  bool layer(int64_t index, int64_t& rows, void* normed) const {
    const Layer& l = d.layers[index];
    const int64_t ld = l.qkv.outs, n = d.hidden;
    const char* qkv = product(l.qkv, s.normed.data(), n, rows, s.qkv);
    const char *k = qkv + query_size() * size, *v = k + kv_size() * size;
    store(k, v, ld, rows, l.k_norm, kv[index], s.slots.data());
    if (index + 1 == d.count) rows = keep_wanted(qkv, ld);
    see(l, rows);
    const char* q = rotated(qkv, ld, rows, d.heads, l.q_norm, s.q);
    grow(s.act, rows * query_size() * size);
    if (d.op.attention(d.is_bf16, q, kv[index].k, kv[index].v, b.tables, b.sequences, b.table_width, b.blocks, b.block_size,
                       s.sequence.data(), s.first.data(), s.last.data(), rows, d.heads, d.kv_heads, d.dim,
                       float(d.scale), s.act.data()))
      return false;
    norm(product(l.out, s.act.data(), query_size(), rows, s.mixed), l.post_norm, rows, s.normed.data());
    const char* gated = product(l.gated, s.normed.data(), n, rows, s.wide);
    norm(product(l.down, gated, l.gated.outs, rows, s.mixed), l.following, rows, normed);
    return true;
  }

  bool run() const {
    lay_out();
    if (!in_bounds()) return false;
    embed();
    int64_t rows = b.sequences * b.rows;
    grow(s.normed, rows * d.hidden * size);
    norm(nullptr, d.first_norm, rows, s.normed.data());
    for (int64_t i = 0; i < d.count; i++)
      if (!layer(i, rows, b.hidden && i + 1 == d.count ? b.hidden : s.normed.data())) return false;
    if (!b.hidden) choose(rows);
    return true;
  }

  void choose(int64_t rows) const {
    grow(s.logits, rows * b.head.outs);
    b.head.run(b.head.layer, b.head.kind, s.normed.data(), d.hidden, rows, s.logits.data());
    d.op.greedy(s.logits.data(), b.head.outs, rows, b.ids, b.tokens);
    if (!b.asked) return;
    for (int64_t r = 0; r < rows; r++) {
      const float* logits = s.logits.data() + r * b.head.outs;
      const int64_t id = b.asked[r / b.wanted * b.asked_stride + r % b.wanted];
      b.leads[r] = logits[b.tokens[r]] - logits[std::max(id, int64_t(0))];
    }
  }
};

}  // namespace

// Returns 0, or 1 where an id, a range or a block is out of bounds.
PACELINE_API int64_t drafter_block(const Drafter* d, const Pages* kv, const Block* b) {
  return BlockPass{{*d, thread_own<Scratch>()}, *b, kv}.run() ? 0 : 1;
}

// Context rows of `features` [rows, fc's inputs] at `positions`, stored at `slots` of every layer.
PACELINE_API void drafter_context(const Drafter* d, const Pages* kv, const void* features, int64_t ld, int64_t rows,
                                  const int64_t* positions, const int64_t* slots) {
  Pass pass{*d, thread_own<Scratch>()};
  Scratch& s = pass.s;
  grow(s.positions, rows);
  for (int64_t r = 0; r < rows; r++) s.positions[r] = std::min(positions[r], d->max_position - 1);
  const char* projected = pass.product(d->fc, (const char*)features, ld, rows, s.mixed);
  grow(s.normed, rows * d->hidden * pass.size);
  d->op.norm(d->is_bf16, 0, float(d->eps), rows, d->hidden, projected, d->hidden, nullptr, 0, d->hidden_norm,
             s.normed.data(), nullptr);
  const char* pairs = pass.product(d->context_kv, s.normed.data(), d->hidden, rows, s.wide);
  const int64_t bytes = pass.kv_size() * pass.size;
  for (int64_t i = 0; i < d->count; i++, pairs += 2 * bytes)
    pass.store(pairs, pairs + bytes, d->context_kv.outs, rows, d->layers[i].k_norm, kv[i], slots);
}
