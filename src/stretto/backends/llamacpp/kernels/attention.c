// Row-by-row attention over an f16 cache, for ARM processors with half-precision arithmetic. Replaces llama.cpp's
// function of the same name; calls that it does not support are passed on to the original. See `interpose.py`.
//
// The same arithmetic in the same order, with the same bits. A lone row gives what it gives beside others, where
// llama.cpp splits its context among threads and rounds differently. It is faster because the scores of many tokens
// are computed before the first is used (no dependency between them), the row's query and its sum stay in
// registers, rows go through keys and values together, and threads take rows in a fixed order without a barrier first.

#include <math.h>

#include "tensors.h"

enum { LANES = 8, STEP = 32, TILED_FROM = 64 };                      // llama.cpp's own choices
enum { TOGETHER = 128, MANY = 32, SHARES = 4 };
enum { MASKED = 0xFC00 };                                            // minus infinity

typedef void attend_t(const params_t *params, tensor *out);

int stretto_attended = 0, stretto_attended_tiles = 0, stretto_passed_on = 0;
static attend_t *original;

// Four numbers whose sum, (0 + 1) + (2 + 3), is the product of a query and a key.
INLINE float32x4_t quarters(const float16x8_t *query, const __fp16 *key, int size) {
  float16x8_t sums[STEP / LANES];
  UNROLLED for (int i = 0; i < STEP / LANES; i++) sums[i] = vdupq_n_f16(0);
  UNROLLED for (int i = 0; i < size / LANES; i++) {
    sums[i % 4] = vfmaq_f16(sums[i % 4], vld1q_f16(key + LANES * i), query[i]);
  }
  const float16x8_t sum = vaddq_f16(vaddq_f16(sums[0], sums[2]), vaddq_f16(sums[1], sums[3]));
  return vaddq_f32(vcvt_f32_f16(vget_low_f16(sum)), vcvt_f32_f16(vget_high_f16(sum)));
}

// The tokens of a block that a row sees, with what the mask adds to their scores. Returns how many. Eight that are
// all visible, as most are, take a few instructions.
INLINE int visible(int32_t *tokens, float *scores, const uint16_t *mask, int count) {
  static const int32_t FIRST[4] = {0, 1, 2, 3};
  const int32x4_t first = vld1q_s32(FIRST);
  int n = 0;
  for (int token = 0; token < count;) {
    if (token + LANES <= count && (mask == NULL || vmaxvq_u16(vld1q_u16(mask + token)) == 0)) {
      UNROLLED for (int i = 0; i < LANES; i += 4, n += 4, token += 4) {
        vst1q_s32(tokens + n, vaddq_s32(first, vdupq_n_s32(token)));
        vst1q_f32(scores + n, vdupq_n_f32(0));
      }
      continue;
    }
    for (int end = token + LANES < count ? token + LANES : count; token < end; token++) {
      if (mask != NULL && mask[token] == MASKED) continue;
      __fp16 added = 0;
      if (mask != NULL) __builtin_memcpy(&added, mask + token, sizeof added);
      tokens[n] = token;
      scores[n++] = added;
    }
  }
  return n;
}

// The scores of `n` tokens, four at a time; there is room for three more, which repeat the last.
INLINE void score(float *scores, int32_t *tokens, int n, const float16x8_t *query, const char *keys, size_t stride,
                  float scale, int size) {
  for (int i = n; i % 4; i++) tokens[i] = tokens[n - 1];
  for (int i = 0; i < n; i += 4) {
    float32x4_t parts[4];
    UNROLLED for (int j = 0; j < 4; j++) {
      parts[j] = quarters(query, (const __fp16 *)(keys + tokens[i + j] * stride), size);
    }
    const float32x4_t products = vpaddq_f32(vpaddq_f32(parts[0], parts[1]), vpaddq_f32(parts[2], parts[3]));
    vst1q_f32(scores + i, vfmaq_n_f32(vld1q_f32(scores + i), products, scale));
  }
}

// Scores to weights. Where a score is the largest so far, its place in `shrinks` is what the sum before is worth.
INLINE void weigh(float *scores, float *shrinks, int n, float *most, float *total) {
  for (int i = 0; i < n; i++) {
    float weight = 1, shrink = 1;
    if (scores[i] > *most) {
      shrink = expf(*most - scores[i]);
      *most = scores[i];
    } else {
      weight = expf(scores[i] - *most);
    }
    scores[i] = weight;
    shrinks[i] = shrink;
    *total = fmaf(*total, shrink, weight);
  }
}

// A query row on its way through the tokens: what it has summed so far.
typedef struct {
  float16x8_t query[16], sums[16];
  float most, total;
  const uint16_t *mask;
  float *out;
} row_t;

INLINE void begin_row(row_t *row, const float *query, const uint16_t *mask, float *out, int size) {
  UNROLLED for (int i = 0; i < size / LANES; i++) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(query + LANES * i));
    row->query[i] = vcvt_high_f16_f32(low, vld1q_f32(query + LANES * i + 4));
    row->sums[i] = vdupq_n_f16(0);
  }
  row->most = -INFINITY;
  row->total = 0;
  row->mask = mask;
  row->out = out;
}

// The next tokens, of those that the row's mask leaves visible. Steps follow each other, so that no call of `expf` comes
// between sums in registers.
INLINE void attend(row_t *row, const char *keys, size_t key_stride, const char *values, size_t value_stride, int64_t from,
                   int count, float scale, int size) {
  int32_t tokens[TOGETHER + 3];
  float scores[TOGETHER + 3], shrinks[TOGETHER];
  const int n = visible(tokens, scores, row->mask == NULL ? NULL : row->mask + from, count);
  if (n == 0) return;
  score(scores, tokens, n, row->query, keys + from * key_stride, key_stride, scale, size);
  weigh(scores, shrinks, n, &row->most, &row->total);
  float16x8_t sums[16];
  UNROLLED for (int j = 0; j < size / LANES; j++) sums[j] = row->sums[j];
  for (int i = 0; i < n; i++) {
    const __fp16 *value = (const __fp16 *)(values + (from + tokens[i]) * value_stride);
    if (shrinks[i] != 1) {
      const float16x8_t shrink = vdupq_n_f16((__fp16)shrinks[i]);
      UNROLLED for (int j = 0; j < size / LANES; j++) sums[j] = vmulq_f16(sums[j], shrink);
    }
    const float16x8_t weight = vdupq_n_f16((__fp16)scores[i]);
    UNROLLED for (int j = 0; j < size / LANES; j++) {
      sums[j] = vfmaq_f16(sums[j], vld1q_f16(value + LANES * j), weight);
    }
  }
  UNROLLED for (int j = 0; j < size / LANES; j++) row->sums[j] = sums[j];
}

INLINE void end_row(const row_t *row, int size) {
  const float inverse = row->total == 0 ? 0 : 1 / row->total;
  UNROLLED for (int i = 0; i < size / LANES; i++) {
    vst1q_f32(row->out + LANES * i, vmulq_n_f32(vcvt_f32_f16(vget_low_f16(row->sums[i])), inverse));
    vst1q_f32(row->out + LANES * i + 4, vmulq_n_f32(vcvt_high_f32_f16(row->sums[i]), inverse));
  }
}

// Up to MANY rows that see the same keys and values go through them together, TOGETHER tokens at a time: these stay in the
// first cache, where a row for itself would read all of them from the second or third.
INLINE void group(const tensor *out, int64_t key_head, int64_t sequence, int64_t first, int64_t count, int size) {
  const tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *mask = out->src[3];
  const int64_t n_rows = q->ne[1], heads = q->ne[2] / k->ne[2];
  const char *keys = k->data + key_head * k->nb[2] + sequence / (q->ne[3] / k->ne[3]) * k->nb[3];
  const char *values = v->data + key_head * v->nb[2] + sequence / (q->ne[3] / v->ne[3]) * v->nb[3];
  float scale;
  __builtin_memcpy(&scale, out->op_params, sizeof scale);
  row_t rows[MANY];
  for (int64_t i = 0; i < count; i++) {
    const int64_t row = (first + i) % n_rows, head = key_head * heads + (first + i) / n_rows;
    const char *masked = mask == NULL ? NULL
                                      : mask->data + row * mask->nb[1] + head % mask->ne[2] * mask->nb[2] +
                                            sequence % mask->ne[3] * mask->nb[3];
    begin_row(&rows[i], (const float *)(q->data + row * q->nb[1] + head * q->nb[2] + sequence * q->nb[3]),
              (const uint16_t *)masked,
              (float *)(out->data + ((sequence * out->ne[2] + row) * out->ne[1] + head) * out->nb[1]), size);
  }
  for (int64_t from = 0; from < k->ne[1]; from += TOGETHER) {
    const int tokens = (int)(from + TOGETHER < k->ne[1] ? TOGETHER : k->ne[1] - from);
    for (int64_t i = 0; i < count; i++) {
      attend(&rows[i], keys, k->nb[1], values, v->nb[1], from, tokens, scale, size);
    }
  }
  for (int64_t i = 0; i < count; i++) end_row(&rows[i], size);
}

// Threads take shares in a fixed order; rows of a share that see the same keys and values are a group.
INLINE void rows(const params_t *params, tensor *out, int size) {
  const tensor *q = out->src[0], *k = out->src[1];
  const int64_t each = q->ne[1] * (q->ne[2] / k->ne[2]), all = each * k->ne[2] * q->ne[3];  // `each` see the same
  const int64_t n_shares = params->nth * SHARES;
  for (int64_t share = params->ith; share < n_shares; share += params->nth) {
    const int64_t end = all * (share + 1) / n_shares;
    for (int64_t at = all * share / n_shares, count; at < end; at += count) {
      const int64_t reader = at / each, left = (reader + 1) * each - at;
      count = end - at < left ? end - at : left;
      if (count > MANY) count = MANY;
      group(out, reader % k->ne[2], reader / k->ne[2], at % each, count, size);
    }
  }
}

// Supported: an f16 cache, heads of 64 or 128, a plain mask, and fewer rows than a tile of llama.cpp.
static bool suits(const tensor *out) {
  const tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *mask = out->src[3], *sinks = out->src[4];
  const bool half = q->type == F32 && k->type == F16 && v->type == F16 && (mask == NULL || mask->type == F16);
  const bool size = (q->ne[0] == 64 || q->ne[0] == 128) && v->ne[0] == q->ne[0];
  const bool heads = k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
  const bool plain = sinks == NULL && out->op_params[1] == 0 && out->op_params[2] == 0;  // no slopes, no cap
  const bool dense = q->nb[0] == sizeof(float) && k->nb[0] == sizeof(__fp16) && v->nb[0] == sizeof(__fp16);
  return half && size && heads && plain && dense && q->ne[1] < TILED_FROM;
}

// The rows of an encoder of pictures or sounds; rows of a language model have a mask.
static bool is_tower(const tensor *out) { return out->src[3] == NULL && out->src[0]->ne[1] >= TILED_FROM; }

void ggml_compute_forward_flash_attn_ext(const params_t *params, tensor *out) {
  if (stretto_own && is_tower(out) && stretto_tiles_suit(out)) {
    if (!stretto_attended_tiles) stretto_attended_tiles = 1;
    stretto_attend_tiles(params, out);
    return;
  }
  if (!stretto_own || !suits(out)) {
    if (!stretto_passed_on) stretto_passed_on = 1;
    original(params, out);
    return;
  }
  if (!stretto_attended) stretto_attended = 1;
  if (out->src[0]->ne[0] == 64) {
    rows(params, out, 64);
  } else {
    rows(params, out, 128);
  }
}

void stretto_original_attention(attend_t *attend) { original = attend; }
