// What towers do between products, number by number, for ARM processors: GELU, and keys and values to half precision.
// With llama.cpp's bits, in a quarter of its time: it takes one number at a time.
//
// llama.cpp's GELU is a table of all numbers of half precision. Ours converts sixty-four numbers at once, looks them up
// in the same table, and converts them back.

#include "tensors.h"

enum { GELU = 8, GELU_QUICK = 9 };  // ggml's numbers of unary operations
enum { TOGETHER = 64 };

typedef void compute_t(const params_t *params, tensor *out);

int stretto_looked_up = 0, stretto_halved = 0;
static compute_t *original_unary, *original_copy;
static const uint16_t *gelu_table, *gelu_quick_table;

INLINE float16x8_t half(const float *from) {
  return vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(from)), vld1q_f32(from + 4));
}

// What the table has for each number; GELU's for numbers beyond ±10 is not the table's but zero, or the number.
INLINE void look_up(float *out, const float *in, const uint16_t *table, bool bounded) {
  uint16_t at[TOGETHER], found[TOGETHER];
  UNROLLED for (int i = 0; i < TOGETHER; i += 8) vst1q_u16(at + i, vreinterpretq_u16_f16(half(in + i)));
  UNROLLED for (int i = 0; i < TOGETHER; i++) found[i] = table[at[i]];
  UNROLLED for (int i = 0; i < TOGETHER; i += 4) {
    const float32x4_t given = vld1q_f32(in + i);
    float32x4_t result = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(found + i)));
    if (bounded) {
      result = vbslq_f32(vcgeq_f32(given, vdupq_n_f32(10)), given, result);
      result = vbslq_f32(vcleq_f32(given, vdupq_n_f32(-10)), vdupq_n_f32(0), result);
    }
    vst1q_f32(out + i, result);
  }
}

INLINE void look_up_row(float *out, const float *in, int64_t n, const uint16_t *table, bool bounded) {
  int64_t i = 0;
  for (; i + TOGETHER <= n; i += TOGETHER) look_up(out + i, in + i, table, bounded);
  if (i < n) {
    float rest[TOGETHER] = {0}, found[TOGETHER];
    __builtin_memcpy(rest, in + i, (n - i) * sizeof(float));
    look_up(found, rest, table, bounded);
    __builtin_memcpy(out + i, found, (n - i) * sizeof(float));
  }
}

typedef struct { const char *in; char *out; } row_t;

INLINE row_t row_of(const tensor *in, const tensor *out, int64_t row) {
  const int64_t i1 = row % in->ne[1], i2 = row / in->ne[1] % in->ne[2], i3 = row / (in->ne[1] * in->ne[2]);
  return (row_t){in->data + i1 * in->nb[1] + i2 * in->nb[2] + i3 * in->nb[3],
                 out->data + i1 * out->nb[1] + i2 * out->nb[2] + i3 * out->nb[3]};
}

static bool same_shape(const tensor *one, const tensor *other) {
  for (int i = 0; i < 4; i++) {
    if (one->ne[i] != other->ne[i]) return false;
  }
  return true;
}

INLINE int64_t rows_of(const tensor *in) { return in->ne[1] * in->ne[2] * in->ne[3]; }

// ── under llama.cpp's names ──────────────────────────────────────────────────────────────────────

void ggml_compute_forward_unary(const params_t *params, tensor *out) {
  const tensor *in = out->src[0];
  const int32_t kind = out->op_params[0];
  const uint16_t *table = kind == GELU ? gelu_table : kind == GELU_QUICK ? gelu_quick_table : NULL;
  const bool dense = in->nb[0] == sizeof(float) && out->nb[0] == sizeof(float);
  if (!stretto_own || table == NULL || in->type != F32 || out->type != F32 || !dense || !same_shape(in, out)) {
    original_unary(params, out);
    return;
  }
  if (!stretto_looked_up) stretto_looked_up = 1;
  for (int64_t row = params->ith; row < rows_of(in); row += params->nth) {
    const row_t at = row_of(in, out, row);
    if (kind == GELU) {
      look_up_row((float *)at.out, (const float *)at.in, in->ne[0], table, true);
    } else {
      look_up_row((float *)at.out, (const float *)at.in, in->ne[0], table, false);
    }
  }
}

void ggml_compute_forward_cpy(const params_t *params, tensor *out) {
  const tensor *in = out->src[0];
  const bool dense = in->nb[0] == sizeof(float) && out->nb[0] == sizeof(__fp16);
  const bool suits = in->type == F32 && out->type == F16 && dense && same_shape(in, out) && in->ne[0] % 8 == 0;
  if (!stretto_own || !suits) {
    original_copy(params, out);
    return;
  }
  if (!stretto_halved) stretto_halved = 1;
  for (int64_t row = params->ith; row < rows_of(in); row += params->nth) {
    const row_t at = row_of(in, out, row);
    for (int64_t i = 0; i < in->ne[0]; i += 8) vst1q_f16((__fp16 *)at.out + i, half((const float *)at.in + i));
  }
}

void stretto_original_elementwise(compute_t *unary, compute_t *copy, const uint16_t *gelu, const uint16_t *gelu_quick) {
  original_unary = unary;
  original_copy = copy;
  gelu_table = gelu;
  gelu_quick_table = gelu_quick;
}
