// Rows times Q4_0 and Q8_0 weights, for x86 processors with AVX-512 and VNNI. Replaces llama.cpp's function of the same
// name; what it does not support is passed on to the original. See `interpose.py`.
//
// A row gives the same bits whatever rows and threads compute beside it: integers are summed exactly, and blocks are
// added in order with one fused multiply-add each.
//
// Why it is faster. A vector holds sixteen columns, so a product of a block needs no sum across a vector. llama.cpp
// repacks Q4_0 weights for vectors of half this size, computes rows in fours and the rest one by one, and repacks no Q8_0
// weights. Here weights are brought into one form, 32 columns at a time, just before all rows are multiplied with them;
// for one row that takes less time than memory needs to deliver them.
//
// Bytes of rows are unsigned (128 more than they are), as the instruction wants, so sums start with what that adds,
// negative.

#include <string.h>

#include "tensors.h"

enum { BLOCK = 32, WORDS = BLOCK / 4, LANES = 16, VECTORS = 2, COLUMNS = VECTORS * LANES, OFFSET = 128 };
enum { STRIP = 8 };  // llama.cpp repacks Q4_0 weights by eight columns
enum { TILE = 6, FEW = 8 };                       // rows whose sums are in registers, for 32 and for 16 columns
enum { AHEAD = 16 };                             // blocks that are fetched ahead of their use
enum { BLOCKS = 128 };                            // of a panel: they stay in the second level of cache
enum { OWN_MAX = 12288 };                         // numbers of a few rows that each thread quantizes for itself
enum { MUL_MAT = 29, CHUNKS = 4, NAN_F16 = 0x7e00 };

typedef struct { uint16_t scale; int8_t numbers[BLOCK]; } q8_0_t;
typedef struct { uint16_t scales[STRIP]; uint8_t numbers[STRIP * BLOCK / 2]; } q4_0x8_t;

// A block of 32 columns. `starts`: what makes up for unsigned rows.
typedef struct {
  int32_t numbers[WORDS][VECTORS][LANES];
  float scales[VECTORS][LANES];
  int32_t starts[VECTORS][LANES];
} panel_t;

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
static _Thread_local panel_t panels[BLOCKS] __attribute__((aligned(64)));
static _Thread_local char own_rows[OWN_MAX / BLOCK * sizeof(q8_0_t)] __attribute__((aligned(64)));

// Quantized rows: bytes of each row, one row after the other; then a scale for each block.
typedef struct {
  const tensor *out, *weights, *in;
  uint8_t *bytes;
  uint16_t *scales;
  int64_t n_blocks, n_rows;
} product_t;

INLINE void quantize_block(uint8_t *bytes, uint16_t *scale, const float *from) {
  const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + LANES);
  const __m512 large = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  const __mmask16 broken = _mm512_cmp_ps_mask(_mm512_abs_ps(low), infinity, _CMP_NLT_UQ) |
                           _mm512_cmp_ps_mask(_mm512_abs_ps(high), infinity, _CMP_NLT_UQ);
  const float most = _mm512_reduce_max_ps(large);
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127 / most : 0);
  const __m128i flip = _mm_set1_epi8((char)OFFSET);
  const __m128i first = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
  const __m128i second = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
  _mm_storeu_si128((__m128i *)bytes, _mm_xor_si128(first, flip));
  _mm_storeu_si128((__m128i *)(bytes + LANES), _mm_xor_si128(second, flip));
  *scale = broken ? NAN_F16 : _cvtss_sh(most / 127, _MM_FROUND_TO_NEAREST_INT);
}

static void quantize(const product_t *p, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) {
    const float *from = (const float *)(p->in->data + i / p->n_blocks * p->in->nb[1]) + i % p->n_blocks * BLOCK;
    quantize_block(p->bytes + i * BLOCK, p->scales + i, from);
  }
}

// Where sixteen columns begin, and a block of them. Columns beyond the last are the last again.
typedef struct {
  const char *at[LANES];     // Q8_0: of each column; Q4_0: of the two strips
  int32_t offsets[LANES];    // of columns, in bytes
} columns_t;

INLINE columns_t columns_from(const tensor *weights, int64_t first, int64_t block) {
  columns_t c;
  if (weights->type == Q4_0) {
    const int64_t n_strips = weights->ne[1] / STRIP, row_blocks = weights->ne[0] / BLOCK;
    for (int i = 0; i < LANES / STRIP; i++) {
      const int64_t strip = first / STRIP + i < n_strips ? first / STRIP + i : n_strips - 1;
      c.at[i] = weights->data + (strip * row_blocks + block) * sizeof(q4_0x8_t);
    }
    return c;
  }
  for (int i = 0; i < LANES; i++) {
    const int64_t column = first + i < weights->ne[1] ? first + i : weights->ne[1] - 1;
    c.at[i] = weights->data + column * weights->nb[1] + block * sizeof(q8_0_t);
    c.offsets[i] = (int32_t)(c.at[i] - c.at[0]);
  }
  return c;
}

// Sixteen bytes of each column, as four words of all of them. Lane 4 j + i is column 4 j + i.
INLINE void transpose(__m512i *words, const columns_t *c, int64_t from) {
  __m512i rows[4];
  UNROLLED for (int i = 0; i < 4; i++) {
    rows[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(c->at[i] + from)));
    rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(c->at[4 + i] + from)), 1);
    rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(c->at[8 + i] + from)), 2);
    rows[i] = _mm512_inserti32x4(rows[i], _mm_loadu_si128((const __m128i *)(c->at[12 + i] + from)), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]), low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]), high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  words[0] = _mm512_unpacklo_epi64(low01, low23);
  words[1] = _mm512_unpackhi_epi64(low01, low23);
  words[2] = _mm512_unpacklo_epi64(high01, high23);
  words[3] = _mm512_unpackhi_epi64(high01, high23);
}

// The words of a block of sixteen columns. Returns their scales. Signed nibbles are sixteen times too large; the scales
// make up for it.
INLINE __m512 unpack(__m512i *words, const columns_t *c, int64_t block, int type) {
  if (type == Q8_0) {
    const int64_t from = block * sizeof(q8_0_t);
    transpose(words, c, from + sizeof(uint16_t));
    transpose(words + WORDS / 2, c, from + sizeof(uint16_t) + BLOCK / 2);
    const __m512i scales = _mm512_i32gather_epi32(_mm512_loadu_si512(c->offsets), c->at[0] + from, 1);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(scales));
  }
  const __m512i ones = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i even = _mm512_add_epi32(ones, ones), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512i mask = _mm512_set1_epi8((char)0xf0);
  const q4_0x8_t *left = (const q4_0x8_t *)c->at[0] + block, *right = (const q4_0x8_t *)c->at[1] + block;
  UNROLLED for (int half = 0; half < 2; half++) {
    const __m512i l = _mm512_loadu_si512(left->numbers + 64 * half), r = _mm512_loadu_si512(right->numbers + 64 * half);
    const __m512i first = _mm512_permutex2var_epi32(l, even, r), second = _mm512_permutex2var_epi32(l, odd, r);
    words[2 * half] = _mm512_and_si512(_mm512_slli_epi32(first, 4), mask);
    words[2 * half + 1] = _mm512_and_si512(_mm512_slli_epi32(second, 4), mask);
    words[4 + 2 * half] = _mm512_and_si512(first, mask);
    words[5 + 2 * half] = _mm512_and_si512(second, mask);
  }
  const __m128i l = _mm_loadu_si128((const __m128i *)left->scales), r = _mm_loadu_si128((const __m128i *)right->scales);
  const __m512 scales = _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(l), r, 1));
  return _mm512_mul_ps(scales, _mm512_set1_ps(1.0f / 16));
}

// What makes up for unsigned rows.
INLINE __m512i start_of(const __m512i *words) {
  __m512i even = _mm512_setzero_si512(), odd = even;
  UNROLLED for (int i = 0; i < WORDS; i += 2) {
    even = _mm512_dpbusd_epi32(even, _mm512_set1_epi8(1), words[i]);
    odd = _mm512_dpbusd_epi32(odd, _mm512_set1_epi8(1), words[i + 1]);
  }
  return _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(even, odd)), 7);
}

// Blocks that are used soon: of these columns, or of the sixteen after them.
INLINE void fetch(const columns_t *c, int64_t block, int64_t n_blocks, int type) {
  if (type == Q8_0) {
    if (block % 2) return;  // two are little more than a cache line
    const int64_t at = block + AHEAD + (block + AHEAD < n_blocks ? 0 : (LANES - 1) * n_blocks);
    UNROLLED for (int i = 0; i < LANES; i++) _mm_prefetch(c->at[i] + at * sizeof(q8_0_t), _MM_HINT_T0);
    return;
  }
  const int64_t at = block + AHEAD + (block + AHEAD < n_blocks ? 0 : n_blocks);
  UNROLLED for (int i = 0; i < LANES / STRIP; i++) {
    const char *from = c->at[i] + at * sizeof(q4_0x8_t);
    UNROLLED for (int line = 0; line < 3; line++) _mm_prefetch(from + 64 * line, _MM_HINT_T0);
  }
}

INLINE void pack(panel_t *to, const tensor *weights, int64_t first, int64_t block, int64_t n_blocks, int type) {
  UNROLLED for (int j = 0; j < VECTORS; j++) {
    const columns_t c = columns_from(weights, first + j * LANES, block);
    for (int64_t b = 0; b < n_blocks; b++) {
      __m512i words[WORDS];
      fetch(&c, b, n_blocks, type);
      _mm512_store_ps(to[b].scales[j], unpack(words, &c, b, type));
      UNROLLED for (int i = 0; i < WORDS; i++) _mm512_store_si512(to[b].numbers[i][j], words[i]);
      _mm512_store_si512(to[b].starts[j], start_of(words));
    }
  }
}

INLINE __m512i words_of(const uint8_t *row, int word) {
  int four;
  memcpy(&four, row + 4 * word, sizeof four);
  return _mm512_set1_epi32(four);
}

INLINE __mmask16 lanes(int64_t n) { return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

// `n` rows, `row_bytes` apart, times a panel; added to `out` unless these are its first blocks.
INLINE void tile(float *out, size_t stride, int64_t left, const panel_t *panel, int64_t n_blocks, const uint8_t *rows,
                 int64_t row_bytes, const float *scales, bool begins, int n) {
  __m512 sums[TILE][VECTORS];
  UNROLLED for (int i = 0; i < n; i++) {
    UNROLLED for (int j = 0; j < VECTORS; j++) {
      sums[i][j] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes(left - j * LANES), out + i * stride + j * LANES);
    }
  }
  for (int64_t b = 0; b < n_blocks; b++, panel++, rows += BLOCK) {
    __m512i whole[TILE][VECTORS];
    UNROLLED for (int i = 0; i < n; i++) {
      UNROLLED for (int j = 0; j < VECTORS; j++) whole[i][j] = _mm512_load_si512(panel->starts[j]);
    }
    UNROLLED for (int word = 0; word < WORDS; word++) {
      const __m512i first = _mm512_load_si512(panel->numbers[word][0]), second = _mm512_load_si512(panel->numbers[word][1]);
      UNROLLED for (int i = 0; i < n; i++) {
        whole[i][0] = _mm512_dpbusd_epi32(whole[i][0], words_of(rows + i * row_bytes, word), first);
        whole[i][1] = _mm512_dpbusd_epi32(whole[i][1], words_of(rows + i * row_bytes, word), second);
      }
    }
    UNROLLED for (int i = 0; i < n; i++) {
      const __m512 scale = _mm512_set1_ps(scales[i * n_blocks + b]);
      UNROLLED for (int j = 0; j < VECTORS; j++) {
        const __m512 both = _mm512_mul_ps(scale, _mm512_load_ps(panel->scales[j]));
        sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[i][j]), both, sums[i][j]);
      }
    }
  }
  UNROLLED for (int i = 0; i < n; i++) {
    UNROLLED for (int j = 0; j < VECTORS; j++) {
      _mm512_mask_storeu_ps(out + i * stride + j * LANES, lanes(left - j * LANES), sums[i][j]);
    }
  }
}

static void to_floats(float *to, const uint16_t *halves, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) {
    const __mmask16 some = lanes(n - i);
    _mm512_mask_storeu_ps(to + i, some, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, halves + i)));
  }
}

// All rows, in tiles of nearly the same number, times some blocks of 32 columns.
static void multiply(const product_t *p, int64_t first, int64_t block, int64_t n_blocks) {
  const int64_t n_tiles = (p->n_rows + TILE - 1) / TILE, left = p->weights->ne[1] - first;
  const size_t stride = p->out->nb[1] / sizeof(float);
  float scales[TILE * BLOCKS];
  for (int64_t t = 0; t < n_tiles; t++) {
    const int64_t row = p->n_rows * t / n_tiles, n = p->n_rows * (t + 1) / n_tiles - row;
    const uint8_t *rows = p->bytes + (row * p->n_blocks + block) * BLOCK;
    float *out = (float *)p->out->data + row * stride + first;
    for (int64_t i = 0; i < n; i++) to_floats(scales + i * n_blocks, p->scales + (row + i) * p->n_blocks + block, n_blocks);
#define ROWS(n) \
  case n: tile(out, stride, left, panels, n_blocks, rows, p->n_blocks * BLOCK, scales, block == 0, n); break
    switch (n) {
      ROWS(1); ROWS(2); ROWS(3); ROWS(4); ROWS(5); ROWS(6);
    }
  }
}

// `n` rows, which are all, times sixteen columns, which are used as they are unpacked.
INLINE void few(const product_t *p, int64_t first, int type, int n) {
  const columns_t c = columns_from(p->weights, first, 0);
  const size_t stride = p->out->nb[1] / sizeof(float);
  float *out = (float *)p->out->data + first;
  __m512 sums[FEW];
  UNROLLED for (int i = 0; i < n; i++) sums[i] = _mm512_setzero_ps();
  for (int64_t b = 0; b < p->n_blocks; b++) {
    __m512i words[WORDS], even[FEW], odd[FEW];  // two sums, because each product waits for the one before
    fetch(&c, b, p->n_blocks, type);
    const __m512 scales = unpack(words, &c, b, type);
    const __m512i start = start_of(words);
    UNROLLED for (int i = 0; i < n; i++) even[i] = start, odd[i] = _mm512_setzero_si512();
    UNROLLED for (int word = 0; word < WORDS; word += 2) {
      UNROLLED for (int i = 0; i < n; i++) {
        const uint8_t *row = p->bytes + (i * p->n_blocks + b) * BLOCK;
        even[i] = _mm512_dpbusd_epi32(even[i], words_of(row, word), words[word]);
        __m512i *other = n <= FEW / 2 ? odd + i : even + i;
        *other = _mm512_dpbusd_epi32(*other, words_of(row, word + 1), words[word + 1]);
      }
    }
    UNROLLED for (int i = 0; i < n; i++) {
      const __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)p->scales[i * p->n_blocks + b]));
      const __m512i whole = n <= FEW / 2 ? _mm512_add_epi32(even[i], odd[i]) : even[i];
      sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_mul_ps(scale, scales), sums[i]);
    }
  }
  UNROLLED for (int i = 0; i < n; i++) _mm512_mask_storeu_ps(out + i * stride, lanes(p->weights->ne[1] - first), sums[i]);
}

static void compute_few(const product_t *p, int64_t from, int64_t to) {
  for (int64_t first = from * COLUMNS; first < to * COLUMNS && first < p->weights->ne[1]; first += LANES) {
#define FEW_ROWS(n) \
  case n: few(p, first, Q4_0, n); break; \
  case n + FEW: few(p, first, Q8_0, n); break
    switch (p->n_rows + (p->weights->type == Q8_0 ? FEW : 0)) {
      FEW_ROWS(1); FEW_ROWS(2); FEW_ROWS(3); FEW_ROWS(4); FEW_ROWS(5); FEW_ROWS(6); FEW_ROWS(7); FEW_ROWS(8);
    }
  }
}

static void compute_many(const product_t *p, int64_t from, int64_t to) {
  const int64_t n_parts = (p->n_blocks + BLOCKS - 1) / BLOCKS;
  for (int64_t panel = from; panel < to; panel++) {
    for (int64_t part = 0; part < n_parts; part++) {
      const int64_t block = p->n_blocks * part / n_parts, n = p->n_blocks * (part + 1) / n_parts - block;
      if (p->weights->type == Q4_0) {
        pack(panels, p->weights, panel * COLUMNS, block, n, Q4_0);
      } else {
        pack(panels, p->weights, panel * COLUMNS, block, n, Q8_0);
      }
      multiply(p, panel * COLUMNS, block, n);
    }
  }
}

static void compute(const product_t *p, int64_t from, int64_t to) {
  (p->n_rows <= FEW ? compute_few : compute_many)(p, from, to);
}

static void product(const params_t *params, const tensor *out) {
  const tensor *in = out->src[1];
  const int ith = params->ith, nth = params->nth;
  const int64_t n_panels = (out->src[0]->ne[1] + COLUMNS - 1) / COLUMNS, n_chunks = CHUNKS * nth;
  const bool own = in->ne[1] <= FEW && in->ne[0] * in->ne[1] <= OWN_MAX;
  product_t p = {out, out->src[0], in, own ? (uint8_t *)own_rows : params->wdata, NULL, in->ne[0] / BLOCK, in->ne[1]};
  const int64_t all = p.n_blocks * p.n_rows;
  p.scales = (uint16_t *)(p.bytes + all * BLOCK);
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

// Supported: Q4_0 weights that llama.cpp has repacked, and Q8_0 weights that it has not.
static bool suits(const params_t *params, const tensor *out) {
  const tensor *weights = out->src[0], *in = out->src[1];
  const bool leaf = weights->op == 0 && weights->view_src == NULL && weights->buffer != NULL;
  const bool floats = in->type == F32 && out->type == F32 && out->op_params[1] == 0;  // a hint: llama.cpp does without them
  const bool flat = in->ne[2] == 1 && in->ne[3] == 1 && weights->ne[2] == 1 && weights->ne[3] == 1;
  const bool dense = in->nb[0] == sizeof(float) && in->nb[1] % sizeof(float) == 0 && out->nb[0] == sizeof(float);
  if (!leaf || !floats || !flat || !dense || in->ne[0] % BLOCK || in->ne[1] == 0) return false;
  if (params->wsize < in->ne[0] / BLOCK * in->ne[1] * sizeof(q8_0_t)) return false;
  if (weights->type == Q4_0) return weights->ne[1] % STRIP == 0 && buffer_type(weights->buffer) == stretto_repacked;
  const bool bytes = weights->type == Q8_0 && weights->nb[1] == weights->ne[0] / BLOCK * sizeof(q8_0_t);
  return bytes && weights->nb[1] < (1 << 30) / COLUMNS && is_plain(weights->buffer);
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
