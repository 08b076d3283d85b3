// Rows times Q4_0, Q5_0, Q8_0, Q4_K and Q6_K weights, for x86 processors with AVX-512 and VNNI. Replaces llama.cpp's
// function of the same name; what it does not support is passed on to the original. See `interpose.py`.
//
// A row gives the same bits whatever rows and threads compute beside it: integers are summed exactly, and blocks are
// added in order with one fused multiply-add for each scale.
//
// Why it is faster. A vector holds sixteen columns, so a product of a block needs no sum across a vector. llama.cpp
// repacks weights for vectors of half this size, computes rows in fours and the rest one by one, and repacks no Q5_0,
// Q8_0 and Q6_K weights. Here weights of any type are brought into one form (`x86_weights.h`): sixteen columns at a time
// for a few rows, which use them while they are in registers, and 32 for many.

#include "x86_products.h"

enum { OWN_MAX = 12288 };  // numbers of a few rows that each thread quantizes for itself
enum { MUL_MAT = 29, CHUNKS = 4, NAN_F16 = 0x7e00 };
enum { ROW_BYTES = BLOCK + sizeof(uint16_t), WITH_SUM = ROW_BYTES + sizeof(int16_t) };  // of a block of a row

typedef bool compute_t(params_t *params, tensor *out);
typedef void *buffer_type_t(void *buffer);
typedef bool is_plain_t(void *buffer);
typedef void barrier_t(void *threadpool);
typedef void chunk_set_t(void *threadpool, int value);
typedef int chunk_add_t(void *threadpool, int value);

int stretto_multiplied = 0;
void *stretto_repacked = NULL;  // the type of buffers in which llama.cpp repacks weights
static compute_t *original;
static buffer_type_t *buffer_type;
static is_plain_t *is_plain;
static barrier_t *barrier;
static chunk_set_t *chunk_set;
static chunk_add_t *chunk_add;
static bool complete;  // none of these is missing
static _Thread_local char own_rows[OWN_MAX / BLOCK * WITH_SUM] __attribute__((aligned(64)));

static void quantize_block(const product_t *p, int64_t block, const float *from) {
  const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + LANES);
  const __m512 large = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  const __mmask16 broken = _mm512_cmp_ps_mask(_mm512_abs_ps(low), infinity, _CMP_NLT_UQ) |
                           _mm512_cmp_ps_mask(_mm512_abs_ps(high), infinity, _CMP_NLT_UQ);
  const float most = _mm512_reduce_max_ps(large);
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127 / most : 0);
  const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)), second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  const __m128i flip = _mm_set1_epi8(p->n_rows > FEW ? (char)0x80 : 0);
  _mm_storeu_si128((__m128i *)(p->bytes + block * BLOCK), _mm_xor_si128(_mm512_cvtsepi32_epi8(first), flip));
  _mm_storeu_si128((__m128i *)(p->bytes + block * BLOCK + LANES), _mm_xor_si128(_mm512_cvtsepi32_epi8(second), flip));
  p->scales[block] = broken ? NAN_F16 : _cvtss_sh(most / 127, _MM_FROUND_TO_NEAREST_INT);
  if (p->sums) p->sums[block] = (int16_t)_mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
}

static void quantize(const product_t *p, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) {
    quantize_block(p, i, (const float *)(p->in->data + i / p->n_blocks * p->in->nb[1]) + i % p->n_blocks * BLOCK);
  }
}

static void compute(const product_t *p, int64_t from, int64_t to) {
  if (p->n_rows <= FEW) stretto_multiply_few(p, from, to);
  else stretto_multiply_many(p, from, to);
}

static void product(const params_t *params, const tensor *out) {
  const tensor *in = out->src[1];
  const int ith = params->ith, nth = params->nth;
  const int64_t n_panels = (out->src[0]->ne[1] + COLUMNS - 1) / COLUMNS, n_chunks = CHUNKS * nth;
  const bool own = in->ne[1] <= FEW && in->ne[0] * in->ne[1] <= OWN_MAX;
  product_t p = {out, out->src[0], in, own ? (uint8_t *)own_rows : params->wdata, NULL, NULL, in->ne[0] / BLOCK, in->ne[1]};
  const int64_t all = p.n_blocks * p.n_rows;
  p.scales = (uint16_t *)(p.bytes + all * BLOCK);
  if (p.weights->type == Q4_K) p.sums = (int16_t *)(p.scales + all);
  if (own) {
    quantize(&p, 0, all);
    compute(&p, n_panels * ith / nth, n_panels * (ith + 1) / nth);
    return;
  }
  quantize(&p, all * ith / nth, all * (ith + 1) / nth);
  if (ith == 0) chunk_set(params->threadpool, nth);
  barrier(params->threadpool);
  for (int64_t chunk = ith; chunk < n_chunks; chunk = chunk_add(params->threadpool, 1)) {
    compute(&p, n_panels * chunk / n_chunks, n_panels * (chunk + 1) / n_chunks);
  }
}

// Supported: Q4_0 and Q4_K weights that llama.cpp has repacked, and Q5_0, Q8_0 and Q6_K weights that it has not.
static bool suits(const params_t *params, const tensor *out) {
  const tensor *weights = out->src[0], *in = out->src[1];
  const bool leaf = weights->op == 0 && weights->view_src == NULL && weights->buffer != NULL;
  const bool floats = in->type == F32 && out->type == F32 && out->op_params[1] == 0;  // a hint: llama.cpp does without them
  const bool flat = in->ne[2] == 1 && in->ne[3] == 1 && weights->ne[2] == 1 && weights->ne[3] == 1;
  const bool dense = in->nb[0] == sizeof(float) && in->nb[1] % sizeof(float) == 0 && out->nb[0] == sizeof(float);
  if (!leaf || !floats || !flat || !dense || in->ne[0] % BLOCK || in->ne[1] == 0) return false;
  const int64_t n_blocks = in->ne[0] / BLOCK;
  const size_t bytes = weights->type == Q4_K ? WITH_SUM : ROW_BYTES;
  if (params->wsize < n_blocks * in->ne[1] * bytes || n_blocks > BLOCKS_MAX) return false;
  switch (weights->type) {
    case Q4_0: case Q4_K: return weights->ne[1] % STRIP == 0 && buffer_type(weights->buffer) == stretto_repacked;
    case Q5_0: case Q8_0: case Q6_K: return weights->nb[1] == (size_t)n_blocks * bytes_of(weights->type) / 8 && is_plain(weights->buffer);
    default: return false;
  }
}

bool ggml_cpu_extra_compute_forward(params_t *params, tensor *out) {
  if (!stretto_own || !complete || out->op != MUL_MAT || !suits(params, out)) return original(params, out);
  if (!stretto_multiplied) stretto_multiplied = 1;
  product(params, out);
  return true;
}

void stretto_original_products(compute_t *compute, buffer_type_t *type, is_plain_t *plain, barrier_t *meet,
                               chunk_set_t *set, chunk_add_t *add) {
  original = compute;
  buffer_type = type;
  is_plain = plain;
  barrier = meet;
  chunk_set = set;
  chunk_add = add;
  complete = type && plain && meet && set && add;
}
