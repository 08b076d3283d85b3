// Attention of the towers that encode pictures and sounds, for ARM processors: many rows over f16 keys and values, no
// mask. It takes half to 0.6 of the time of llama.cpp's tiles.
//
// Sixteen queries at a time, transposed, so that scores, maxima and weights of sixteen queries are four vectors and
// no sum runs across a vector. All arithmetic is in single precision, as in llama.cpp's tiles, in another order: the
// bits differ. What a row gives depends on its query, the keys and the values, never on the rows beside it.

#include <math.h>

#include "tensors.h"

enum { QUERIES = 16, TOKENS = 256, ROWS = 128, WIDEST = 128 };  // of a block of queries, of keys, of a task; of a head
enum { TASKS_EACH = 4, ROWS_MIN = 32 };                            // more tasks than threads, but no small ones
static const float LEAST = -1e30f;                                 // below all scores, and finite

static _Thread_local float keys[TOKENS * WIDEST], values[TOKENS * WIDEST], sums[ROWS * WIDEST];

// e to the x, for x of at most 0; nothing below -87, so tokens beyond the last do not count at all.
INLINE float32x4_t exponential(float32x4_t given) {
  const float32x4_t x = vmaxq_f32(given, vdupq_n_f32(-87.0f));
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
  r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
  float32x4_t sum = vdupq_n_f32(1.0f / 720);
  sum = vfmaq_f32(vdupq_n_f32(1.0f / 120), sum, r);
  sum = vfmaq_f32(vdupq_n_f32(1.0f / 24), sum, r);
  sum = vfmaq_f32(vdupq_n_f32(1.0f / 6), sum, r);
  sum = vfmaq_f32(vdupq_n_f32(0.5f), sum, r);
  sum = vfmaq_f32(vdupq_n_f32(1.0f), sum, r);
  sum = vfmaq_f32(vdupq_n_f32(1.0f), sum, r);
  const int32x4_t power = vshlq_n_s32(vcvtq_s32_f32(n), 23);
  const int32x4_t result = vaddq_s32(vreinterpretq_s32_f32(sum), power);
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(result), vcgeq_f32(given, vdupq_n_f32(-87.0f))));
}

// Half precision to single; rows beyond the last are zero.
static void widen(float *to, const char *from, size_t stride, int n, int padded, int size) {
  for (int row = 0; row < padded; row++, to += size) {
    for (int i = 0; i < size; i += 8) {
      const float16x8_t half = row < n ? vld1q_f16((const __fp16 *)(from + row * stride) + i) : vdupq_n_f16(0);
      vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(half)));
      vst1q_f32(to + i + 4, vcvt_high_f32_f16(half));
    }
  }
}

// scores[token][query] of all tokens of a block; minus infinity beyond the last.
static void score(float *scores, const float *queries, int n, int padded, int size) {
  for (int token = 0; token < padded; token += 4) {
    float32x4_t sum[4][4];
    UNROLLED for (int i = 0; i < 4; i++) {
      UNROLLED for (int j = 0; j < 4; j++) sum[i][j] = vdupq_n_f32(0);
    }
    for (int d = 0; d < size; d += 4) {
      float32x4_t key[4];
      UNROLLED for (int i = 0; i < 4; i++) key[i] = vld1q_f32(keys + (token + i) * size + d);
#define LANE(l)                                                                    \
  UNROLLED for (int j = 0; j < 4; j++) {                                           \
    const float32x4_t query = vld1q_f32(queries + (d + l) * QUERIES + 4 * j);      \
    UNROLLED for (int i = 0; i < 4; i++) {                                         \
      sum[i][j] = vfmaq_laneq_f32(sum[i][j], query, key[i], l);                    \
    }                                                                              \
  }
      LANE(0) LANE(1) LANE(2) LANE(3)
#undef LANE
    }
    UNROLLED for (int i = 0; i < 4; i++) {
      UNROLLED for (int j = 0; j < 4; j++) {
        const float32x4_t found = token + i < n ? sum[i][j] : vdupq_n_f32(-INFINITY);
        vst1q_f32(scores + (token + i) * QUERIES + 4 * j, found);
      }
    }
  }
}

// Scores to weights. Updates the maximum and the total of each query; `shrink` is for what was summed before.
static void weigh(float *scores, float *most, float *total, float *shrink, int padded) {
  UNROLLED for (int j = 0; j < 4; j++) {
    const float32x4_t before = vld1q_f32(most + 4 * j);
    float32x4_t now = before, sum = vdupq_n_f32(0);
    for (int token = 0; token < padded; token++) now = vmaxq_f32(now, vld1q_f32(scores + token * QUERIES + 4 * j));
    for (int token = 0; token < padded; token++) {
      float *at = scores + token * QUERIES + 4 * j;
      const float32x4_t weight = exponential(vsubq_f32(vld1q_f32(at), now));
      vst1q_f32(at, weight);
      sum = vaddq_f32(sum, weight);
    }
    const float32x4_t less = exponential(vsubq_f32(before, now));
    vst1q_f32(most + 4 * j, now);
    vst1q_f32(shrink + 4 * j, less);
    vst1q_f32(total + 4 * j, vfmaq_f32(sum, vld1q_f32(total + 4 * j), less));
  }
}

// Adds the weighted values of a block to eight queries' sums, eight numbers at a time.
static void add_values(float *to, const float *weights, const float *shrink, int padded, int size) {
  for (int d = 0; d < size; d += 8) {
    float32x4_t sum[8][2];
    UNROLLED for (int i = 0; i < 8; i++) {
      sum[i][0] = vmulq_n_f32(vld1q_f32(to + i * size + d), shrink[i]);
      sum[i][1] = vmulq_n_f32(vld1q_f32(to + i * size + d + 4), shrink[i]);
    }
    for (int token = 0; token < padded; token++) {
      const float32x4_t low = vld1q_f32(weights + token * QUERIES), high = vld1q_f32(weights + token * QUERIES + 4);
      const float32x4_t first = vld1q_f32(values + token * size + d), second = vld1q_f32(values + token * size + d + 4);
#define QUERY(i, weight, lane)                                       \
  sum[i][0] = vfmaq_laneq_f32(sum[i][0], first, weight, lane);       \
  sum[i][1] = vfmaq_laneq_f32(sum[i][1], second, weight, lane);
      QUERY(0, low, 0) QUERY(1, low, 1) QUERY(2, low, 2) QUERY(3, low, 3)
      QUERY(4, high, 0) QUERY(5, high, 1) QUERY(6, high, 2) QUERY(7, high, 3)
#undef QUERY
    }
    UNROLLED for (int i = 0; i < 8; i++) {
      vst1q_f32(to + i * size + d, sum[i][0]);
      vst1q_f32(to + i * size + d + 4, sum[i][1]);
    }
  }
}

// One task: some of the queries that share the keys of a head. Query `i` is row i % rows of head i / rows.
typedef struct {
  const tensor *out, *q, *k, *v;
  int64_t sequence, first_head;
  int first, n;
} task_t;

INLINE const char *query_row(const task_t *task, int i, int64_t *row, int64_t *head) {
  const tensor *q = task->q;
  *row = (task->first + i) % q->ne[1], *head = task->first_head + (task->first + i) / q->ne[1];
  return q->data + *row * q->nb[1] + *head * q->nb[2] + task->sequence * q->nb[3];
}

// queries[d][query], times the scale; zero beyond the last.
static void transpose(float *to, const task_t *task, int from, int size, float scale) {
  for (int query = 0; query < QUERIES; query++) {
    int64_t row, head;
    const bool real = from + query < task->n;
    const float *values = real ? (const float *)query_row(task, from + query, &row, &head) : NULL;
    for (int d = 0; d < size; d++) to[d * QUERIES + query] = real ? values[d] * scale : 0;
  }
}

static void attend(const task_t *task) {
  const tensor *out = task->out, *q = task->q, *k = task->k, *v = task->v;
  const int size = (int)q->ne[0];
  const char *key = k->data + task->first_head / (q->ne[2] / k->ne[2]) * k->nb[2] +
                    task->sequence / (q->ne[3] / k->ne[3]) * k->nb[3];
  const char *value = v->data + task->first_head / (q->ne[2] / v->ne[2]) * v->nb[2] +
                      task->sequence / (q->ne[3] / v->ne[3]) * v->nb[3];
  float scale, most[ROWS], total[ROWS];
  __builtin_memcpy(&scale, out->op_params, sizeof scale);
  for (int i = 0; i < ROWS; i++) most[i] = LEAST, total[i] = 0;
  for (int i = 0; i < ROWS * size; i++) sums[i] = 0;
  for (int64_t from = 0; from < k->ne[1]; from += TOKENS) {
    const int tokens = (int)(k->ne[1] - from < TOKENS ? k->ne[1] - from : TOKENS), padded = (tokens + 3) & ~3;
    widen(keys, key + from * k->nb[1], k->nb[1], tokens, padded, size);
    widen(values, value + from * v->nb[1], v->nb[1], tokens, padded, size);
    for (int i = 0; i < task->n; i += QUERIES) {
      float queries[WIDEST * QUERIES], scores[TOKENS * QUERIES], shrink[QUERIES];
      transpose(queries, task, i, size, scale);
      score(scores, queries, tokens, padded, size);
      weigh(scores, most + i, total + i, shrink, padded);
      add_values(sums + i * size, scores, shrink, padded, size);
      add_values(sums + (i + 8) * size, scores + 8, shrink + 8, padded, size);
    }
  }
  for (int i = 0; i < task->n; i++) {
    int64_t row, head;
    query_row(task, i, &row, &head);
    float *to = (float *)(out->data + ((task->sequence * out->ne[2] + row) * out->ne[1] + head) * out->nb[1]);
    for (int d = 0; d < size; d++) to[d] = sums[i * size + d] / total[i];
  }
}

// Supported: f16 keys and values, heads of up to 128 numbers in eights, no mask.
bool stretto_tiles_suit(const tensor *out) {
  const tensor *q = out->src[0], *k = out->src[1], *v = out->src[2];
  const bool types = q->type == F32 && k->type == F16 && v->type == F16;
  const bool bare = out->src[3] == NULL && out->src[4] == NULL;                       // no mask, no sinks
  const bool plain = bare && out->op_params[1] == 0 && out->op_params[2] == 0;  // no slopes, no cap
  const bool dense = q->nb[0] == sizeof(float) && k->nb[0] == sizeof(__fp16) && v->nb[0] == sizeof(__fp16);
  const bool size = q->ne[0] % 8 == 0 && q->ne[0] <= WIDEST && v->ne[0] == q->ne[0];
  return types && plain && dense && size && k->ne[2] == v->ne[2];
}

void stretto_attend_tiles(const params_t *params, tensor *out) {
  const tensor *q = out->src[0], *k = out->src[1];
  const int64_t shared = q->ne[2] / k->ne[2], queries = shared * q->ne[1], heads = k->ne[2] * q->ne[3];
  int64_t parts = (queries + ROWS - 1) / ROWS;
  while (parts * heads < TASKS_EACH * params->nth && queries / (2 * parts) >= ROWS_MIN) parts *= 2;
  const int64_t share = ((queries + parts - 1) / parts + QUERIES - 1) / QUERIES * QUERIES;
  for (int64_t at = params->ith; at < parts * heads; at += params->nth) {
    const int64_t first = at % parts * share, rest = queries - first, head = at / parts;
    const task_t task = {out, q, k, out->src[2], head / k->ne[2], head % k->ne[2] * shared,
                         (int)first, (int)(rest < share ? rest : share)};
    if (rest > 0) attend(&task);
  }
}
