// A few rows times quantized weights: the decode passes of one to seven streams, and what a pass has left over of fours.
// For ARM processors with dot products and without matrix instructions; see `gemm.c` and `interpose.py`.
//
// The same bits as llama.cpp's kernel for a single row: integers are summed exactly, and blocks are added in order with
// one fused multiply-add each.
//
// Why it is faster. llama.cpp computes rows in fours and the rest one after the other, each over all weights; here the
// rest shares the unpacking of a block, which is half of the work of one row, and does so with four rows, too. No
// conversion of sums and no repeated one of the rows' scales (see `gemm.c`). Fewer than eight rows need no barrier
// between quantizing and multiplying: each thread quantizes them for itself, in less time than threads take to meet.

#include "tensors.h"
#include "weights.h"

enum { FEW = GROUP - 1, MUL_MAT = 29, CHUNKS = 4 };
enum { OWN_MAX = 12288 };  // values of rows that each thread quantizes for itself

typedef struct { uint16_t scale; int8_t values[BLOCK]; } row_t;

typedef bool compute_t(params_t *params, tensor *out);
typedef void quantize_row_t(const float *in, void *out, int64_t n);
typedef void *buffer_type_t(void *buffer);
typedef void barrier_t(void *threadpool);
typedef void chunk_set_t(void *threadpool, int value);
typedef int chunk_add_t(void *threadpool, int value);

int stretto_multiplied_few = 0;
void *stretto_repacked = NULL;  // the type of buffers in which llama.cpp repacks weights
static compute_t *original;
static quantize_row_t *quantize_row;
static buffer_type_t *buffer_type;
static barrier_t *barrier;
static chunk_set_t *chunk_set;
static chunk_add_t *chunk_add;
static bool complete;  // none of these is missing

// Four columns for four rows, if there are any, and `n_rows` more, which are `n_blocks` apart, as are their scales.
INLINE void columns(int n_blocks, float *out, size_t stride, const uint8_t *weights, const bytes_t *fours,
                    const float *four_scales, const row_t *rows, const float *scales, int n_rows, weights_t kind) {
  const float32x4_t begin_as_float = vdupq_n_f32(BEGIN_AS_FLOAT);
  float32x4_t four_sums[GROUP], sums[FEW];
  UNROLLED for (int r = 0; r < GROUP; r++) four_sums[r] = vdupq_n_f32(0);
  UNROLLED for (int r = 0; r < n_rows; r++) sums[r] = vdupq_n_f32(0);
  for (int b = 0; b < n_blocks; b++, weights += size_of(kind)) {
    int8x16_t unpacked[8];
    const float32x4_t weight_scales = floats((const uint16_t *)weights);
    unpack(unpacked, (const int8_t *)weights + sizeof(uint16_t) * GROUP, kind);
    if (fours) add_block(four_sums, unpacked, weight_scales, fours[b].values, four_scales + GROUP * b, begin_as_float);
    UNROLLED for (int r = 0; r < n_rows; r++) {
      const int8_t *values = rows[r * n_blocks + b].values;
      const int8x16_t low = vld1q_s8(values), high = vld1q_s8(values + BLOCK / 2);
      int32x4_t sum;
      __asm__("ldr %q0, [%1]" : "=w"(sum) : "r"(begin), "m"(begin));  // a load, because moves take vector pipes
      sum = vdotq_laneq_s32(sum, unpacked[0], low, 0);
      sum = vdotq_laneq_s32(sum, unpacked[1], low, 1);
      sum = vdotq_laneq_s32(sum, unpacked[2], low, 2);
      sum = vdotq_laneq_s32(sum, unpacked[3], low, 3);
      sum = vdotq_laneq_s32(sum, unpacked[4], high, 0);
      sum = vdotq_laneq_s32(sum, unpacked[5], high, 1);
      sum = vdotq_laneq_s32(sum, unpacked[6], high, 2);
      sum = vdotq_laneq_s32(sum, unpacked[7], high, 3);
      const float32x4_t products = vsubq_f32(vreinterpretq_f32_s32(sum), begin_as_float);
      sums[r] = vfmaq_f32(sums[r], products, vmulq_n_f32(weight_scales, scales[r * n_blocks + b]));
    }
  }
  if (fours) {
    UNROLLED for (int r = 0; r < GROUP; r++) vst1q_f32(out + r * stride, four_sums[r]);
    out += GROUP * stride;
  }
  UNROLLED for (int r = 0; r < n_rows; r++) vst1q_f32(out + r * stride, sums[r]);
}

INLINE void strips(int n_blocks, float *out, size_t stride, const uint8_t *weights, const bytes_t *fours,
                   const float *four_scales, const row_t *rows, const float *scales, int n_rows, int64_t n_strips,
                   weights_t kind) {
  for (int64_t strip = 0; strip < n_strips; strip++, out += GROUP, weights += n_blocks * size_of(kind)) {
    if (fours) {
      columns(n_blocks, out, stride, weights, fours, four_scales, rows, scales, n_rows, kind);
    } else {
      columns(n_blocks, out, stride, weights, NULL, NULL, rows, scales, n_rows, kind);
    }
  }
}

// Four quantized rows, if there are any, and `n_rows` more times `n_strips` times four columns.
static void multiply(int n_blocks, float *out, size_t stride, const uint8_t *weights, const bytes_t *fours,
                     const row_t *rows, int n_rows, int64_t n_strips, weights_t kind) {
  const float unit = kind == NIBBLES ? 1.0f / 16 : 1;
  float scales[FEW * BLOCKS_MAX], four_scales[GROUP * BLOCKS_MAX];
  for (int i = 0; i < n_rows * n_blocks; i++) {
    __fp16 half;
    __builtin_memcpy(&half, &rows[i].scale, sizeof half);
    scales[i] = (float)half * unit;
  }
  for (int b = 0; fours && b < n_blocks; b++) {
    vst1q_f32(four_scales + GROUP * b, vmulq_n_f32(floats(fours[b].scales), unit));
  }
#define STRIPS(n, kind) strips(n_blocks, out, stride, weights, fours, four_scales, rows, scales, n, n_strips, kind)
  switch (n_rows + GROUP * kind) {
    case 0: STRIPS(0, NIBBLES); break;
    case 1: STRIPS(1, NIBBLES); break;
    case 2: STRIPS(2, NIBBLES); break;
    case 3: STRIPS(3, NIBBLES); break;
    case 4: STRIPS(0, BYTES); break;
    case 5: STRIPS(1, BYTES); break;
    case 6: STRIPS(2, BYTES); break;
    default: STRIPS(3, BYTES); break;
  }
}

// A product of which a thread computes strips. Rows are quantized in fours, interleaved, and the rest one by one.
typedef struct { const tensor *out, *weights, *in; char *quantized; int n_blocks, n_rows, rest; weights_t kind; } product_t;

INLINE size_t row_bytes(const product_t *p) { return p->n_blocks * sizeof(row_t); }

static void quantize(const product_t *p, int ith, int nth) {
  const int most = p->n_rows - p->rest;
  for (int r = GROUP * ith; r < most; r += GROUP * nth) {
    ggml_quantize_mat_q8_0_4x4((const float *)(p->in->data + r * p->in->nb[1]), p->quantized + r * row_bytes(p), p->in->ne[0]);
  }
  for (int r = most + ith; r < p->n_rows; r += nth) {
    quantize_row((const float *)(p->in->data + r * p->in->nb[1]), p->quantized + r * row_bytes(p), p->in->ne[0]);
  }
}

static void compute(const product_t *p, int64_t from, int64_t to) {
  const int most = p->n_rows - p->rest;
  const size_t stride = p->out->nb[1] / sizeof(float);
  const uint8_t *weights = (const uint8_t *)p->weights->data + from * p->n_blocks * size_of(p->kind);
  const row_t *rest = (const row_t *)(p->quantized + most * row_bytes(p));
  float *out = (float *)p->out->data + GROUP * from;
  if (from == to) return;
  if (most <= GROUP) {
    const bytes_t *fours = most ? (const bytes_t *)p->quantized : NULL;
    multiply(p->n_blocks, out, stride, weights, fours, rest, p->rest, to - from, p->kind);
    return;
  }
  multiply_t *multiply_fours = p->kind == NIBBLES ? ggml_gemm_q4_0_4x4_q8_0 : ggml_gemm_q8_0_4x4_q8_0;
  multiply_fours((int)p->in->ne[0], out, stride, weights, p->quantized, most, (int)(GROUP * (to - from)));
  if (p->rest) multiply(p->n_blocks, out + most * stride, stride, weights, NULL, rest, p->rest, to - from, p->kind);
}

static void product(const params_t *params, const tensor *out) {
  const tensor *in = out->src[1];
  const int ith = params->ith, nth = params->nth;
  const int64_t n_strips = out->src[0]->ne[1] / GROUP, n_chunks = CHUNKS * nth;
  char own[OWN_MAX / BLOCK * sizeof(row_t)];
  product_t p = {out, out->src[0], in, own, (int)(in->ne[0] / BLOCK), (int)in->ne[1], (int)(in->ne[1] % GROUP),
                 out->src[0]->type == Q4_0 ? NIBBLES : BYTES};
  if (p.n_rows < 2 * GROUP && in->ne[0] * in->ne[1] <= OWN_MAX) {
    quantize(&p, 0, 1);
    compute(&p, n_strips * ith / nth, n_strips * (ith + 1) / nth);
    return;
  }
  p.quantized = params->wdata;
  quantize(&p, ith, nth);
  if (ith == 0) chunk_set(params->threadpool, nth);
  barrier(params->threadpool);
  for (int64_t chunk = ith; chunk < n_chunks; chunk = chunk_add(params->threadpool, 1)) {
    compute(&p, n_strips * chunk / n_chunks, n_strips * (chunk + 1) / n_chunks);
  }
}

// Supported: weights that llama.cpp has repacked by four columns. Larger numbers of rows in fours are as fast its way.
static bool suits(const tensor *out) {
  const tensor *weights = out->src[0], *in = out->src[1];
  const bool kind = (weights->type == Q4_0 || weights->type == Q8_0) && in->type == F32 && out->type == F32;
  const bool plain = in->ne[2] == 1 && in->ne[3] == 1 && weights->ne[2] == 1 && weights->ne[3] == 1;
  const bool rows = in->ne[1] % GROUP || in->ne[1] == GROUP;
  const bool size = weights->ne[1] % GROUP == 0 && in->ne[0] % BLOCK == 0 && in->ne[0] / BLOCK <= BLOCKS_MAX;
  const bool dense = in->nb[0] == sizeof(float) && in->nb[1] == in->ne[0] * sizeof(float) && out->nb[0] == sizeof(float);
  return kind && plain && rows && size && dense && weights->view_src == NULL && weights->buffer != NULL &&
         buffer_type(weights->buffer) == stretto_repacked;
}

bool ggml_cpu_extra_compute_forward(params_t *params, tensor *out) {
  if (!stretto_own || !complete || out->op != MUL_MAT || !suits(out)) return original(params, out);
  if (!stretto_multiplied_few) stretto_multiplied_few = 1;
  product(params, out);
  return true;
}

void stretto_original_products(compute_t *compute, quantize_row_t *quantize, buffer_type_t *type, barrier_t *meet,
                               chunk_set_t *set, chunk_add_t *add) {
  original = compute;
  quantize_row = quantize;
  buffer_type = type;
  barrier = meet;
  chunk_set = set;
  chunk_add = add;
  complete = quantize && type && meet && set && add;
}
