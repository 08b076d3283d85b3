// Attention over an f16 cache, for x86 processors with AVX-512. Replaces llama.cpp's function of the same name; calls
// that it does not support are passed on to the original. See `interpose.py`.
//
// A row gives the same bits whatever rows and threads compute beside it and however far its cache is padded: sums run
// over the cells that it sees, in blocks of 64 that begin at fixed cells, and a cell that it does not see is left out.
// Everything is in single precision, where llama.cpp sums values in half precision. It is faster because the query
// heads that share keys and values go through them together, and no call of `expf` comes between two tokens.

#include <math.h>

#include "tensors.h"

enum { LANES = 16, BLOCK = 64, TILE = 4, WIDE = 4, WIDEST = 256 };  // WIDE: vectors of a value that are summed at a time
enum { GROUP = 96, CONVERTED_FROM = 13, SHARES = 4, MANY = 64 };   // queries of a group; from which a block is converted
enum { MASKED = 0xFC00 };                                          // minus infinity
static const float LOG2_E = 1.44269504f;

typedef void attend_t(const params_t *params, tensor *out);

int stretto_own = 0, stretto_attended = 0, stretto_passed_on = 0;
static attend_t *original;
static _Thread_local float converted[2][BLOCK * WIDEST] __attribute__((aligned(64)));

// Keys or values of a block of cells, in half or in single precision.
typedef struct {
  const char *rows;
  size_t stride;
} cells_t;

INLINE __m512 numbers(const cells_t *cells, int cell, int d, bool halves) {
  const char *row = cells->rows + cell * cells->stride;
  if (halves) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)row + d)));
  return _mm512_loadu_ps((const float *)row + d);
}

// A query on its way through the cells. What it has summed so far is in `out`.
typedef struct {
  const float *query;
  const uint16_t *mask;
  float *out;
  float most, total;
} query_t;

// 2 to the x, for x of at most 0, to 2e-7.
INLINE __m512 power_of_2(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.5403530e-4f);
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.3333558e-3f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(9.6181291e-3f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(5.5504109e-2f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(2.4022651e-1f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(6.9314718e-1f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1));
  return _mm512_scalef_ps(sum, whole);
}

INLINE float power_of_2_of(float x) { return _mm512_cvtss_f32(power_of_2(_mm512_set1_ps(x))); }

// Of each quarter of four vectors the sum, in an order that is the same for all: ((0 + 2) + (1 + 3)).
INLINE __m512 quarters(const __m512 *of) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(of[0], of[1]), _mm512_unpackhi_ps(of[0], of[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(of[2], of[3]), _mm512_unpackhi_ps(of[2], of[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}

INLINE __m512 neighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// The products of sixteen keys with `n` queries. A cell beyond the last of the cache is the last again.
INLINE void multiply(__m512 *products, const query_t *const *queries, const cells_t *keys, int first, int last, int size,
                     bool halves, int n) {
  __m512 parts[4][TILE];
  UNROLLED for (int four = 0; four < 4; four++) {
    __m512 sums[TILE][4];
    int cell[4];
    UNROLLED for (int i = 0; i < 4; i++) {
      cell[i] = first + 4 * four + i < last ? first + 4 * four + i : last;
      UNROLLED for (int j = 0; j < n; j++) sums[j][i] = _mm512_setzero_ps();
    }
    for (int d = 0; d < size; d += LANES) {
      __m512 key[4];
      UNROLLED for (int i = 0; i < 4; i++) key[i] = numbers(keys, cell[i], d, halves);
      UNROLLED for (int j = 0; j < n; j++) {
        const __m512 query = _mm512_loadu_ps(queries[j]->query + d);
        UNROLLED for (int i = 0; i < 4; i++) sums[j][i] = _mm512_fmadd_ps(key[i], query, sums[j][i]);
      }
    }
    UNROLLED for (int j = 0; j < n; j++) parts[four][j] = quarters(sums[j]);
  }
  UNROLLED for (int j = 0; j < n; j++) {
    products[j] = neighbours(neighbours(parts[0][j], parts[1][j]), neighbours(parts[2][j], parts[3][j]));
  }
}

// The weights of a block's cells for one query, from their scores. Returns what its sum before is worth.
INLINE float weigh(float *weights, query_t *query, uint64_t visible) {
  __m512 most = _mm512_set1_ps(-INFINITY);
  UNROLLED for (int i = 0; i < BLOCK; i += LANES) {
    most = _mm512_mask_max_ps(most, (__mmask16)(visible >> i), most, _mm512_load_ps(weights + i));
  }
  const float before = query->most;
  query->most = fmaxf(before, _mm512_reduce_max_ps(most));
  __m512 total = _mm512_setzero_ps();
  UNROLLED for (int i = 0; i < BLOCK; i += LANES) {
    const __m512 less = _mm512_sub_ps(_mm512_load_ps(weights + i), _mm512_set1_ps(query->most));
    const __m512 weight = _mm512_maskz_mov_ps((__mmask16)(visible >> i), power_of_2(less));
    _mm512_store_ps(weights + i, weight);
    total = _mm512_add_ps(total, weight);
  }
  const float shrink = power_of_2_of(before - query->most);
  query->total = query->total * shrink + _mm512_reduce_add_ps(total);
  return shrink;
}

// Adds the weighted values of the visible cells to `n` sums, `wide` vectors of them.
INLINE void add_values(query_t *const *queries, const float weights[TILE][BLOCK], const float *shrinks,
                       const cells_t *values, uint64_t visible, int d, bool halves, int wide, int n) {
  __m512 sums[TILE][WIDE];
  UNROLLED for (int j = 0; j < n; j++) {
    const __m512 shrink = _mm512_set1_ps(shrinks[j]);
    UNROLLED for (int i = 0; i < wide; i++) {
      sums[j][i] = _mm512_mul_ps(_mm512_loadu_ps(queries[j]->out + d + LANES * i), shrink);
    }
  }
  for (; visible; visible &= visible - 1) {
    const int cell = __builtin_ctzll(visible);
    __m512 value[WIDE];
    UNROLLED for (int i = 0; i < wide; i++) value[i] = numbers(values, cell, d + LANES * i, halves);
    UNROLLED for (int j = 0; j < n; j++) {
      const __m512 weight = _mm512_set1_ps(weights[j][cell]);
      UNROLLED for (int i = 0; i < wide; i++) sums[j][i] = _mm512_fmadd_ps(value[i], weight, sums[j][i]);
    }
  }
  UNROLLED for (int j = 0; j < n; j++) {
    UNROLLED for (int i = 0; i < wide; i++) _mm512_storeu_ps(queries[j]->out + d + LANES * i, sums[j][i]);
  }
}

// What a block of cells has for queries: `count` cells from cell `from`.
typedef struct {
  cells_t keys, values;
  int64_t from;
  int count, size;
  float scale;
} block_t;

// `n` queries that see the same cells of a block.
INLINE void attend_some(query_t *const *queries, const block_t *block, uint64_t visible, bool plain, bool halves, int n) {
  float weights[TILE][BLOCK] __attribute__((aligned(64)));
  float shrinks[TILE];
  for (int first = 0; first < BLOCK; first += LANES) {
    __m512 products[TILE];
    if (((visible >> first) & 0xffff) == 0) continue;
    multiply(products, (const query_t *const *)queries, &block->keys, first, block->count - 1, block->size, halves, n);
    UNROLLED for (int j = 0; j < n; j++) {
      __m512 score = _mm512_mul_ps(products[j], _mm512_set1_ps(block->scale));
      if (!plain) {
        const __mmask16 some = (__mmask16)(visible >> first);
        const uint16_t *mask = queries[j]->mask + block->from + first;
        const __m512 added = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, mask));
        score = _mm512_fmadd_ps(added, _mm512_set1_ps(LOG2_E), score);
      }
      _mm512_store_ps(weights[j] + first, score);
    }
  }
  UNROLLED for (int j = 0; j < n; j++) shrinks[j] = weigh(weights[j], queries[j], visible);
  int d = 0;
  for (; d + WIDE * LANES <= block->size; d += WIDE * LANES) {
    add_values(queries, weights, shrinks, &block->values, visible, d, halves, WIDE, n);
  }
  for (; d < block->size; d += LANES) add_values(queries, weights, shrinks, &block->values, visible, d, halves, 1, n);
}

static void attend(query_t *const *queries, int n, const block_t *block, uint64_t visible, bool plain, bool halves) {
#define CASE(n)                                                       \
  case n:                                                             \
    if (halves) attend_some(queries, block, visible, plain, true, n); \
    else attend_some(queries, block, visible, plain, false, n);       \
    break;
  switch (n) { CASE(1) CASE(2) CASE(3) CASE(4) }
#undef CASE
}

// Which of a block's cells a row sees. `plain`: the mask adds nothing to their scores.
INLINE uint64_t visible_of(const uint16_t *mask, int count, bool *plain) {
  const uint64_t all = count < BLOCK ? (1ull << count) - 1 : ~0ull;
  *plain = true;
  if (mask == NULL) return all;
  uint64_t visible = 0, added = 0;
  UNROLLED for (int i = 0; i < BLOCK; i += 32) {
    const __m512i some = _mm512_maskz_loadu_epi16((__mmask32)(all >> i), mask + i);
    visible |= (uint64_t)_mm512_cmpneq_epi16_mask(some, _mm512_set1_epi16((short)MASKED)) << i;
    added |= (uint64_t)_mm512_test_epi16_mask(some, some) << i;
  }
  visible &= all;
  *plain = (added & visible) == 0;
  return visible;
}

static cells_t in_single(float *to, const cells_t *cells, int count, int size) {
  const cells_t result = {(const char *)to, size * sizeof(float)};
  for (int cell = 0; cell < count; cell++) {
    for (int d = 0; d < size; d += LANES) _mm512_store_ps(to + cell * size + d, numbers(cells, cell, d, true));
  }
  return result;
}

// The queries of a group go through the cells together, a block at a time, those with the same mask in one step.
static void attend_group(query_t *queries, int n, block_t *block, int64_t cells) {
  const cells_t keys = block->keys, values = block->values;
  for (block->from = 0; block->from < cells; block->from += BLOCK) {
    block->count = (int)(cells - block->from < BLOCK ? cells - block->from : BLOCK);
    block->keys = (cells_t){keys.rows + block->from * keys.stride, keys.stride};
    block->values = (cells_t){values.rows + block->from * values.stride, values.stride};
    bool halves = true;
    for (int i = 0, some; i < n; i += some) {
      query_t *together[TILE];
      bool plain;
      const uint16_t *mask = queries[i].mask == NULL ? NULL : queries[i].mask + block->from;
      const uint64_t visible = visible_of(mask, block->count, &plain);
      for (some = 0; some < TILE && i + some < n; some++) {
        bool other_plain;
        if (queries[i + some].mask != queries[i].mask) {
          if (visible_of(queries[i + some].mask + block->from, block->count, &other_plain) != visible) break;
          if (!plain || !other_plain) break;
        }
        together[some] = &queries[i + some];
      }
      if (visible == 0) continue;
      if (halves && n >= CONVERTED_FROM) {
        block->keys = in_single(converted[0], &block->keys, block->count, block->size);
        block->values = in_single(converted[1], &block->values, block->count, block->size);
        halves = false;
      }
      attend(together, some, block, visible, plain, halves);
    }
  }
}

static void begin(query_t *query, const tensor *out, int64_t row, int64_t head, int64_t sequence) {
  const tensor *q = out->src[0], *mask = out->src[3];
  query->query = (const float *)(q->data + row * q->nb[1] + head * q->nb[2] + sequence * q->nb[3]);
  query->mask = mask == NULL ? NULL
                             : (const uint16_t *)(mask->data + row * mask->nb[1] + head % mask->ne[2] * mask->nb[2] +
                                                  sequence % mask->ne[3] * mask->nb[3]);
  query->out = (float *)(out->data + ((sequence * out->ne[2] + row) * out->ne[1] + head) * out->nb[1]);
  query->most = -INFINITY;
  query->total = 0;
  for (int64_t d = 0; d < q->ne[0]; d++) query->out[d] = 0;
}

static void end(const query_t *query, int64_t size) {
  const float inverse = query->total == 0 ? 0 : 1 / query->total;
  for (int64_t d = 0; d < size; d++) query->out[d] *= inverse;
}

// Queries `first` to `first + count` of those that see one head of keys and values; the heads of a row follow each other.
static void group(const tensor *out, int64_t key_head, int64_t sequence, int64_t first, int count) {
  const tensor *q = out->src[0], *k = out->src[1], *v = out->src[2];
  const int64_t heads = q->ne[2] / k->ne[2];
  query_t queries[GROUP];
  for (int i = 0; i < count; i++) {
    begin(&queries[i], out, (first + i) / heads, key_head * heads + (first + i) % heads, sequence);
  }
  float scale;
  __builtin_memcpy(&scale, out->op_params, sizeof scale);
  block_t block = {
      .keys = {k->data + key_head * k->nb[2] + sequence / (q->ne[3] / k->ne[3]) * k->nb[3], k->nb[1]},
      .values = {v->data + key_head * v->nb[2] + sequence / (q->ne[3] / v->ne[3]) * v->nb[3], v->nb[1]},
      .size = (int)q->ne[0],
      .scale = scale * LOG2_E,
  };
  attend_group(queries, count, &block, k->ne[1]);
  for (int i = 0; i < count; i++) end(&queries[i], q->ne[0]);
}

// Threads take shares in a fixed order; queries of a share that see the same keys and values are a group.
static void rows(const params_t *params, const tensor *out) {
  const tensor *q = out->src[0], *k = out->src[1];
  const int64_t each = q->ne[1] * (q->ne[2] / k->ne[2]), all = each * k->ne[2] * q->ne[3];  // `each` see the same
  const int64_t n_shares = params->nth * (q->ne[1] < MANY ? 1 : SHARES);
  for (int64_t share = params->ith; share < n_shares; share += params->nth) {
    const int64_t end = all * (share + 1) / n_shares;
    for (int64_t at = all * share / n_shares, count; at < end; at += count) {
      const int64_t reader = at / each, left = (reader + 1) * each - at;
      count = end - at < left ? end - at : left;
      if (count > GROUP) count = GROUP;
      group(out, reader % k->ne[2], reader / k->ne[2], at % each, (int)count);
    }
  }
}

// Supported: an f16 cache, heads of up to 256 numbers in sixteens, a plain mask.
static bool suits(const tensor *out) {
  const tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *mask = out->src[3], *sinks = out->src[4];
  const bool half = q->type == F32 && k->type == F16 && v->type == F16 && (mask == NULL || mask->type == F16);
  const bool size = q->ne[0] % LANES == 0 && q->ne[0] <= WIDEST && v->ne[0] == q->ne[0];
  const bool heads = k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
  const bool plain = sinks == NULL && out->op_params[1] == 0 && out->op_params[2] == 0;  // no slopes, no cap
  const bool dense = q->nb[0] == sizeof(float) && k->nb[0] == sizeof(uint16_t) && v->nb[0] == sizeof(uint16_t);
  return half && size && heads && plain && dense;
}

void ggml_compute_forward_flash_attn_ext(const params_t *params, tensor *out) {
  if (!stretto_own || !suits(out)) {
    if (!stretto_passed_on) stretto_passed_on = 1;
    original(params, out);
    return;
  }
  if (!stretto_attended) stretto_attended = 1;
  rows(params, out);
}

void stretto_original_attention(attend_t *attend) { original = attend; }
