// A few quantized rows times sixteen columns at a time, which are used while they are in registers.

#include "x86_products.h"

// Of each block of each row; starts of its two halves.
typedef struct {
  float scales[FEW * BLOCKS_MAX], sums[FEW * BLOCKS_MAX];
  int32_t starts[2 * FEW * BLOCKS_MAX];
} rows_t;

static _Thread_local rows_t own_rows;

// What makes up for weights that are too large: for each block of a row, or for its halves.
static void find_starts(int32_t *starts, const product_t *p, int64_t n, int parts, int middle) {
  for (int64_t i = 0; i < n; i++) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(p->bytes + i * BLOCK));
    const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    const __m256i twos = _mm256_hadd_epi32(fours, fours), ones = _mm256_hadd_epi32(twos, twos);
    const int first = _mm256_extract_epi32(ones, 0), second = _mm256_extract_epi32(ones, 4);
    starts[i * parts] = -middle * (parts == 1 ? first + second : first);
    if (parts == 2) starts[i * parts + 1] = -middle * second;
  }
}

// `n` rows, which are all, times sixteen columns, which are used as they are unpacked.
INLINE void few(const product_t *p, const rows_t *rows, int64_t first, int type, int n) {
  columns_t c;
  find_columns(&c, p->weights, first, 0, type);
  const size_t stride = p->out->nb[1] / sizeof(float);
  const int parts = parts_of(type);
  float *out = (float *)p->out->data + first;
  __m512 sums[FEW];
  UNROLLED for (int i = 0; i < n; i++) sums[i] = _mm512_setzero_ps();
  for (int64_t b = 0; b < p->n_blocks; b++) {
    block_t found;
    fetch(&c, b, p->n_blocks, type);
    unpack(&found, &c, b, type);
    UNROLLED for (int part = 0; part < parts; part++) {
      __m512i even[FEW], odd[FEW];  // two sums, because each product waits for the one before
      UNROLLED for (int i = 0; i < n; i++) {
        even[i] = type == Q4_K ? _mm512_setzero_si512() : _mm512_set1_epi32(rows->starts[(i * p->n_blocks + b) * parts + part]);
        odd[i] = _mm512_setzero_si512();
      }
      UNROLLED for (int at = 0; at < WORDS / parts; at += 2) {
        const int word = part * (WORDS / 2) + at;
        UNROLLED for (int i = 0; i < n; i++) {
          const uint8_t *row = p->bytes + (i * p->n_blocks + b) * BLOCK;
          __m512i *other = n <= FEW / 2 ? odd + i : even + i;
          even[i] = _mm512_dpbusd_epi32(even[i], found.words[word], words_of(row, word));
          *other = _mm512_dpbusd_epi32(*other, found.words[word + 1], words_of(row, word + 1));
        }
      }
      UNROLLED for (int i = 0; i < n; i++) {
        const __m512 both = _mm512_mul_ps(_mm512_set1_ps(rows->scales[i * p->n_blocks + b]), found.scales[part]);
        const __m512i whole = n <= FEW / 2 ? _mm512_add_epi32(even[i], odd[i]) : even[i];
        sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), both, sums[i]);
      }
    }
    UNROLLED for (int i = 0; type == Q4_K && i < n; i++) {
      sums[i] = _mm512_fnmadd_ps(_mm512_set1_ps(rows->sums[i * p->n_blocks + b]), found.scales[1], sums[i]);
    }
  }
  UNROLLED for (int i = 0; i < n; i++) _mm512_mask_storeu_ps(out + i * stride, lanes(p->weights->ne[1] - first), sums[i]);
}

INLINE void few_of(const product_t *p, int64_t from, int64_t to, int type) {
  rows_t *rows = &own_rows;
  FOUND(rows);
  to_floats(p, rows->scales, rows->sums, 0, p->n_rows * p->n_blocks);
  if (middle_of(type)) find_starts(rows->starts, p, p->n_rows * p->n_blocks, parts_of(type), middle_of(type));
  for (int64_t first = from * COLUMNS; first < to * COLUMNS && first < p->weights->ne[1]; first += LANES) {
#define ROWS(n) case n: few(p, rows, first, type, n); break
    switch (p->n_rows) {
      ROWS(1); ROWS(2); ROWS(3); ROWS(4); ROWS(5); ROWS(6); ROWS(7); ROWS(8);
    }
  }
}

void stretto_multiply_few(const product_t *p, int64_t from, int64_t to) {
#define OF_TYPE(type) \
  case type: few_of(p, from, to, type); break
  switch (p->weights->type) {
    OF_TYPE(Q4_0); OF_TYPE(Q5_0); OF_TYPE(Q8_0); OF_TYPE(Q4_K); OF_TYPE(Q6_K);
  }
}
