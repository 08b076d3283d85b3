// Attention of the towers that encode pictures and sounds, for ARM processors: many rows over f16 keys and values, no
// mask. It takes a quarter of the time of llama.cpp's tiles.
//
// Sixteen queries at a time, transposed, so that scores, maxima and weights of sixteen queries are whole vectors and
// no sum runs across a vector. Scores and weights are in half precision, which has twice the numbers in a vector; no sum
// of products is longer than 32 numbers of a head or 64 tokens, and what 64 tokens give is added in single precision. The
// result is some 0.2 % off, less than what quantized rows around it are. What a row gives depends on its query,
// the keys and the values, never on the rows beside it.

#include <math.h>

#include "tensors.h"

enum { QUERIES = 16, TOKENS = 128, ROWS = 128, WIDEST = 128 };  // of a block of queries, of keys, of a task; of a head
enum { TOGETHER = 8, HALVES = 32, HALVES_TOKENS = 64 };          // tokens at a time; what half precision sums
enum { TASKS_EACH = 4, ROWS_MIN = 32 };                            // more tasks than threads, but no small ones
static const __fp16 LEAST = -65504;                                // below all scores, and finite
static const float LOG2_E = 1.44269504f;

static _Thread_local float sums[ROWS * WIDEST];
static _Thread_local __fp16 queries[ROWS * WIDEST];  // blocks of [d][query]

// 2 to the x, for x of at most 0, to 2^-10; nothing below -25. The sum with `shift` has the power in its lowest bits,
// and twelve more, so that small results are rounded as half precision rounds them.
INLINE float16x8_t power_of_2(float16x8_t given) {
  const float16x8_t x = vmaxq_f16(given, vdupq_n_f16(-25)), shift = vdupq_n_f16(1536 + 12);
  const float16x8_t shifted = vaddq_f16(x, shift), r = vsubq_f16(x, vsubq_f16(shifted, shift));
  float16x8_t sum = vdupq_n_f16(0.0558f);
  sum = vfmaq_f16(vdupq_n_f16(0.2402f), sum, r);
  sum = vfmaq_f16(vdupq_n_f16(0.6931f), sum, r);
  sum = vfmaq_f16(vdupq_n_f16(1), sum, r);
  const int16x8_t power = vshlq_n_s16(vreinterpretq_s16_f16(shifted), 10);
  const int16x8_t result = vaddq_s16(vreinterpretq_s16_f16(sum), power);
  return vmulq_f16(vreinterpretq_f16_s16(result), vdupq_n_f16(1.0f / 4096));
}

// A block of keys or values: `n` rows of half precision. Beyond the last there is the last again.
typedef struct {
  const char *rows;
  size_t stride;
  int n, padded;
} block_t;

INLINE const __fp16 *row_of(const block_t *block, int row) {
  return (const __fp16 *)(block->rows + (row < block->n ? row : block->n - 1) * block->stride);
}

// Eight keys times sixteen queries, over `n` numbers of a head (in eights): in assembly because compilers use lanes
// of few registers, and copy them to vectors first. v0 to v7: keys, v8 to v11: queries, v16 to v31: sums.
static void multiply(__fp16 *to, const __fp16 *these, const __fp16 *const *key, int n) {
  const __fp16 *k0 = key[0], *k1 = key[1], *k2 = key[2], *k3 = key[3];
  const __fp16 *k4 = key[4], *k5 = key[5], *k6 = key[6], *k7 = key[7];
#define ZERO(i) "movi v" #i ".16b, #0\n"
#define EACH(low, high, lane)                                                                            \
  ADD(16, low, 0, lane) ADD(17, high, 0, lane) ADD(18, low, 1, lane) ADD(19, high, 1, lane)              \
  ADD(20, low, 2, lane) ADD(21, high, 2, lane) ADD(22, low, 3, lane) ADD(23, high, 3, lane)              \
  ADD(24, low, 4, lane) ADD(25, high, 4, lane) ADD(26, low, 5, lane) ADD(27, high, 5, lane)              \
  ADD(28, low, 6, lane) ADD(29, high, 6, lane) ADD(30, low, 7, lane) ADD(31, high, 7, lane)
#define ADD(sum, queries, key, lane) "fmla v" #sum ".8h, v" #queries ".8h, v" #key ".h[" #lane "]\n"
  __asm__ volatile(
      ZERO(16) ZERO(17) ZERO(18) ZERO(19) ZERO(20) ZERO(21) ZERO(22) ZERO(23)
      ZERO(24) ZERO(25) ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
      "1:\n"
      "ldp q8, q9, [%[these]], #32\n"
      "ldr q0, [%[k0]], #16\n" "ldr q1, [%[k1]], #16\n" "ldr q2, [%[k2]], #16\n" "ldr q3, [%[k3]], #16\n"
      "ldr q4, [%[k4]], #16\n" "ldr q5, [%[k5]], #16\n" "ldr q6, [%[k6]], #16\n" "ldr q7, [%[k7]], #16\n"
      "ldp q10, q11, [%[these]], #32\n" EACH(8, 9, 0)
      "ldp q8, q9, [%[these]], #32\n" EACH(10, 11, 1)
      "ldp q10, q11, [%[these]], #32\n" EACH(8, 9, 2)
      "ldp q8, q9, [%[these]], #32\n" EACH(10, 11, 3)
      "ldp q10, q11, [%[these]], #32\n" EACH(8, 9, 4)
      "ldp q8, q9, [%[these]], #32\n" EACH(10, 11, 5)
      "ldp q10, q11, [%[these]], #32\n" EACH(8, 9, 6)
      "subs %w[n], %w[n], #8\n" EACH(10, 11, 7)
      "b.gt 1b\n"
      "stp q16, q17, [%[to]]\n" "stp q18, q19, [%[to], #32]\n" "stp q20, q21, [%[to], #64]\n"
      "stp q22, q23, [%[to], #96]\n" "stp q24, q25, [%[to], #128]\n" "stp q26, q27, [%[to], #160]\n"
      "stp q28, q29, [%[to], #192]\n" "stp q30, q31, [%[to], #224]\n"
      : [k0] "+r"(k0), [k1] "+r"(k1), [k2] "+r"(k2), [k3] "+r"(k3), [k4] "+r"(k4), [k5] "+r"(k5), [k6] "+r"(k6),
        [k7] "+r"(k7), [these] "+r"(these), [n] "+r"(n)
      : [to] "r"(to)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16", "v17", "v18",
        "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef ADD
#undef EACH
#undef ZERO
}

// scores[token][query] of all tokens of a block; beyond the last they are below all others.
static void score(__fp16 *scores, const __fp16 *these, const block_t *keys, int size) {
  for (int token = 0; token < keys->padded; token += TOGETHER) {
    for (int d = 0; d < size; d += HALVES) {
      const __fp16 *key[TOGETHER];
      __fp16 found[TOGETHER * QUERIES], *to = scores + token * QUERIES;
      UNROLLED for (int i = 0; i < TOGETHER; i++) key[i] = row_of(keys, token + i) + d;
      multiply(d > 0 ? found : to, these + d * QUERIES, key, size - d < HALVES ? size - d : HALVES);
      if (d > 0) {
        UNROLLED for (int i = 0; i < TOGETHER * QUERIES; i += 8) {
          vst1q_f16(to + i, vaddq_f16(vld1q_f16(to + i), vld1q_f16(found + i)));
        }
      }
    }
  }
  for (int i = keys->n * QUERIES; i < keys->padded * QUERIES; i++) scores[i] = LEAST;
}

// Scores to weights. Updates the maximum and the total of each query; `shrink` is for what was summed before.
static void weigh(__fp16 *scores, __fp16 *most, float *total, float *shrink, int padded) {
  float16x8_t before[2], now[2];
  UNROLLED for (int j = 0; j < 2; j++) before[j] = now[j] = vld1q_f16(most + 8 * j);
  for (int token = 0; token < padded; token++) {
    UNROLLED for (int j = 0; j < 2; j++) now[j] = vmaxq_f16(now[j], vld1q_f16(scores + token * QUERIES + 8 * j));
  }
  UNROLLED for (int j = 0; j < 2; j++) {
    const float16x8_t less = power_of_2(vsubq_f16(before[j], now[j]));
    vst1q_f16(most + 8 * j, now[j]);
    UNROLLED for (int i = 0; i < 2; i++) {
      const float32x4_t factor = vcvt_f32_f16(i ? vget_high_f16(less) : vget_low_f16(less));
      vst1q_f32(shrink + 8 * j + 4 * i, factor);
      vst1q_f32(total + 8 * j + 4 * i, vmulq_f32(vld1q_f32(total + 8 * j + 4 * i), factor));
    }
  }
  for (int first = 0; first < padded; first += TOGETHER) {
    float16x8_t sum[2] = {vdupq_n_f16(0), vdupq_n_f16(0)};
    UNROLLED for (int token = first; token < first + TOGETHER; token++) {
      UNROLLED for (int j = 0; j < 2; j++) {
        __fp16 *at = scores + token * QUERIES + 8 * j;
        const float16x8_t weight = power_of_2(vsubq_f16(vld1q_f16(at), now[j]));
        vst1q_f16(at, weight);
        sum[j] = vaddq_f16(sum[j], weight);
      }
    }
    UNROLLED for (int j = 0; j < 2; j++) {
      float *at = total + 8 * j;
      vst1q_f32(at, vaddq_f32(vld1q_f32(at), vcvt_f32_f16(vget_low_f16(sum[j]))));
      vst1q_f32(at + 4, vaddq_f32(vld1q_f32(at + 4), vcvt_high_f32_f16(sum[j])));
    }
  }
}

// Adds the weighted values of some tokens to eight queries' sums, `wide` times eight numbers at a time.
INLINE void add_some(float *to, const __fp16 *weights, const float *shrink, const block_t *values, int first, int last,
                     int d, int size, int wide) {
  float16x8_t sum[8][2];
  UNROLLED for (int i = 0; i < 8; i++) {
    UNROLLED for (int j = 0; j < wide; j++) sum[i][j] = vdupq_n_f16(0);
  }
  for (int token = first; token < last; token++) {
    const __fp16 *row = row_of(values, token) + d;
    const float16x8_t weight = vld1q_f16(weights + token * QUERIES);
    UNROLLED for (int j = 0; j < wide; j++) {
      const float16x8_t value = vld1q_f16(row + 8 * j);
#define QUERY(i) __asm__("fmla %0.8h, %1.8h, %2.h[" #i "]" : "+w"(sum[i][j]) : "w"(value), "x"(weight));
      QUERY(0) QUERY(1) QUERY(2) QUERY(3) QUERY(4) QUERY(5) QUERY(6) QUERY(7)
#undef QUERY
    }
  }
  UNROLLED for (int i = 0; i < 8; i++) {
    UNROLLED for (int j = 0; j < wide; j++) {
      float *at = to + i * size + d + 8 * j;
      const float less = first == 0 ? shrink[i] : 1;
      vst1q_f32(at, vfmaq_n_f32(vcvt_f32_f16(vget_low_f16(sum[i][j])), vld1q_f32(at), less));
      vst1q_f32(at + 4, vfmaq_n_f32(vcvt_high_f32_f16(sum[i][j]), vld1q_f32(at + 4), less));
    }
  }
}

static void add_values(float *to, const __fp16 *weights, const float *shrink, const block_t *values, int size) {
  for (int first = 0; first < values->padded; first += HALVES_TOKENS) {
    const int last = first + HALVES_TOKENS < values->padded ? first + HALVES_TOKENS : values->padded;
    int d = 0;
    for (; d + 16 <= size; d += 16) add_some(to, weights, shrink, values, first, last, d, size, 2);
    if (d < size) add_some(to, weights, shrink, values, first, last, d, size, 1);
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

// Eight rows of eight to eight columns.
INLINE void turn(float16x8_t rows[8]) {
  float16x8_t half[8];
  UNROLLED for (int step = 0; step < 3; step++) {
    UNROLLED for (int i = 0; i < 4; i++) {
      half[2 * i] = vzip1q_f16(rows[i], rows[i + 4]);
      half[2 * i + 1] = vzip2q_f16(rows[i], rows[i + 4]);
    }
    UNROLLED for (int i = 0; i < 8; i++) rows[i] = half[i];
  }
}

// All queries of a task, times the scale; the first again beyond the last.
static void transpose(const task_t *task, int size, float scale) {
  for (int query = 0; query < (task->n + QUERIES - 1) / QUERIES * QUERIES; query += 8) {
    __fp16 *to = queries + query / QUERIES * QUERIES * size + query % QUERIES;
    for (int d = 0; d < size; d += 8) {
      float16x8_t rows[8];
      UNROLLED for (int i = 0; i < 8; i++) {
        int64_t row, head;
        const float *from = (const float *)query_row(task, query + i < task->n ? query + i : 0, &row, &head) + d;
        const float32x4_t low = vmulq_n_f32(vld1q_f32(from), scale), high = vmulq_n_f32(vld1q_f32(from + 4), scale);
        rows[i] = vcvt_high_f16_f32(vcvt_f16_f32(low), high);
      }
      turn(rows);
      UNROLLED for (int i = 0; i < 8; i++) vst1q_f16(to + (d + i) * QUERIES, rows[i]);
    }
  }
}

static void attend(const task_t *task) {
  const tensor *out = task->out, *q = task->q, *k = task->k, *v = task->v;
  const int size = (int)q->ne[0];
  const char *key = k->data + task->first_head / (q->ne[2] / k->ne[2]) * k->nb[2] +
                    task->sequence / (q->ne[3] / k->ne[3]) * k->nb[3];
  const char *value = v->data + task->first_head / (q->ne[2] / v->ne[2]) * v->nb[2] +
                      task->sequence / (q->ne[3] / v->ne[3]) * v->nb[3];
  float scale, total[ROWS];
  __fp16 most[ROWS];
  __builtin_memcpy(&scale, out->op_params, sizeof scale);
  for (int i = 0; i < ROWS; i++) most[i] = LEAST, total[i] = 0;
  for (int i = 0; i < ROWS * size; i++) sums[i] = 0;
  transpose(task, size, scale * LOG2_E);
  for (int64_t from = 0; from < k->ne[1]; from += TOKENS) {
    const int tokens = (int)(k->ne[1] - from < TOKENS ? k->ne[1] - from : TOKENS);
    const int padded = (tokens + TOGETHER - 1) / TOGETHER * TOGETHER;
    const block_t keys = {key + from * k->nb[1], k->nb[1], tokens, padded};
    const block_t values = {value + from * v->nb[1], v->nb[1], tokens, padded};
    for (int i = 0; i < task->n; i += QUERIES) {
      __fp16 scores[TOKENS * QUERIES];
      float shrink[QUERIES];
      score(scores, queries + i * size, &keys, size);
      weigh(scores, most + i, total + i, shrink, padded);
      add_values(sums + i * size, scores, shrink, &values, size);
      add_values(sums + (i + 8) * size, scores + 8, shrink + 8, &values, size);
    }
  }
  for (int i = 0; i < task->n; i++) {
    int64_t row, head;
    query_row(task, i, &row, &head);
    float *to = (float *)(out->data + ((task->sequence * out->ne[2] + row) * out->ne[1] + head) * out->nb[1]);
    const float inverse = 1 / total[i];
    for (int d = 0; d < size; d++) to[d] = sums[i * size + d] * inverse;
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
