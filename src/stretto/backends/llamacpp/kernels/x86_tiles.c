// Many quantized rows times panels of 32 columns, unpacked once for all rows.

#include "x86_products.h"

enum { TILE = 6 };      // rows whose sums are in registers
enum { BLOCKS = 128 };  // of a panel, which stays in the second level of cache

// A block of 32 columns.
typedef struct {
  int32_t numbers[WORDS][VECTORS][LANES];
  float scales[2][VECTORS][LANES];
  int32_t starts[2][VECTORS][LANES];
} panel_t;

// -128 times the sum of `n` words. Two sums, because each product waits for the one before.
INLINE __m512i start_of(const __m512i *words, int n) {
  __m512i even = _mm512_setzero_si512(), odd = even;
  UNROLLED for (int i = 0; i < n; i += 2) {
    even = _mm512_dpbusd_epi32(even, _mm512_set1_epi8(1), words[i]);
    odd = _mm512_dpbusd_epi32(odd, _mm512_set1_epi8(1), words[i + 1]);
  }
  return _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(even, odd)), 7);
}

INLINE void pack(panel_t *to, const tensor *weights, int64_t first, int64_t block, int64_t n_blocks, int type) {
  UNROLLED for (int j = 0; j < VECTORS; j++) {
    columns_t c;
    find_columns(&c, weights, first + j * LANES, block, type);
    for (int64_t b = 0; b < n_blocks; b++) {
      block_t found;
      fetch(&c, b, n_blocks, type);
      unpack(&found, &c, b, type);
      UNROLLED for (int i = 0; i < WORDS; i++) {
        found.words[i] = _mm512_sub_epi8(found.words[i], _mm512_set1_epi8((char)middle_of(type)));
        _mm512_store_si512(to[b].numbers[i][j], found.words[i]);
      }
      UNROLLED for (int i = 0; i < 2; i++) {
        if (i < 1 || type == Q4_K || type == Q6_K) _mm512_store_ps(to[b].scales[i][j], found.scales[i]);
        if (i < parts_of(type)) _mm512_store_si512(to[b].starts[i][j], start_of(found.words + i * WORDS / 2, WORDS / parts_of(type)));
      }
    }
  }
}

// `n` rows, `row_bytes` apart, times a panel; added to `out` unless these are its first blocks.
INLINE void tile(float *out, size_t stride, int64_t left, const panel_t *panel, int64_t n_blocks, const uint8_t *rows,
                 int64_t row_bytes, const float *scales, const float *row_sums, bool begins, int parts, bool minima, int n) {
  __m512 sums[TILE][VECTORS];
  UNROLLED for (int i = 0; i < n; i++) {
    UNROLLED for (int j = 0; j < VECTORS; j++) {
      sums[i][j] = begins ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes(left - j * LANES), out + i * stride + j * LANES);
    }
  }
  for (int64_t b = 0; b < n_blocks; b++, panel++, rows += BLOCK) {
    UNROLLED for (int part = 0; part < parts; part++) {
      __m512i whole[TILE][VECTORS];
      UNROLLED for (int i = 0; i < n; i++) {
        UNROLLED for (int j = 0; j < VECTORS; j++) whole[i][j] = _mm512_load_si512(panel->starts[part][j]);
      }
      UNROLLED for (int at = 0; at < WORDS / parts; at++) {
        const int word = part * (WORDS / 2) + at;
        const __m512i first = _mm512_load_si512(panel->numbers[word][0]), second = _mm512_load_si512(panel->numbers[word][1]);
        UNROLLED for (int i = 0; i < n; i++) {
          whole[i][0] = _mm512_dpbusd_epi32(whole[i][0], words_of(rows + i * row_bytes, word), first);
          whole[i][1] = _mm512_dpbusd_epi32(whole[i][1], words_of(rows + i * row_bytes, word), second);
        }
      }
      UNROLLED for (int i = 0; i < n; i++) {
        const __m512 scale = _mm512_set1_ps(scales[i * n_blocks + b]);
        UNROLLED for (int j = 0; j < VECTORS; j++) {
          const __m512 both = _mm512_mul_ps(scale, _mm512_load_ps(panel->scales[part][j]));
          sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[i][j]), both, sums[i][j]);
        }
      }
    }
    UNROLLED for (int i = 0; minima && i < n; i++) {
      const __m512 row_sum = _mm512_set1_ps(row_sums[i * n_blocks + b]);
      UNROLLED for (int j = 0; j < VECTORS; j++) {
        sums[i][j] = _mm512_fnmadd_ps(row_sum, _mm512_load_ps(panel->scales[1][j]), sums[i][j]);
      }
    }
  }
  UNROLLED for (int i = 0; i < n; i++) {
    UNROLLED for (int j = 0; j < VECTORS; j++) {
      _mm512_mask_storeu_ps(out + i * stride + j * LANES, lanes(left - j * LANES), sums[i][j]);
    }
  }
}

static _Thread_local panel_t own_panels[BLOCKS] __attribute__((aligned(64)));

// All rows, in tiles of nearly the same number, times some blocks of 32 columns.
INLINE void multiply(const product_t *p, const panel_t *panels, int64_t first, int64_t block, int64_t n_blocks, int parts, bool minima) {
  const int64_t n_tiles = (p->n_rows + TILE - 1) / TILE, left = p->weights->ne[1] - first;
  const size_t stride = p->out->nb[1] / sizeof(float);
  float scales[TILE * BLOCKS], sums[TILE * BLOCKS];
  for (int64_t t = 0; t < n_tiles; t++) {
    const int64_t row = p->n_rows * t / n_tiles, n = p->n_rows * (t + 1) / n_tiles - row;
    const uint8_t *rows = p->bytes + (row * p->n_blocks + block) * BLOCK;
    float *out = (float *)p->out->data + row * stride + first;
    for (int64_t i = 0; i < n; i++) {
      to_floats(p, scales + i * n_blocks, sums + i * n_blocks, (row + i) * p->n_blocks + block, n_blocks);
    }
#define ROWS(n) \
  case n: tile(out, stride, left, panels, n_blocks, rows, p->n_blocks * BLOCK, scales, sums, block == 0, parts, minima, n); break
    switch (n) {
      ROWS(4); ROWS(5); ROWS(6);  // of more than eight rows
    }
  }
}

INLINE void many(const product_t *p, int64_t from, int64_t to, int type) {
  panel_t *panels = own_panels;
  FOUND(panels);
  for (int64_t panel = from; panel < to; panel++) {
    for (int64_t block = 0; block < p->n_blocks; block += BLOCKS) {
      const int64_t n = p->n_blocks - block < BLOCKS ? p->n_blocks - block : BLOCKS;
      pack(panels, p->weights, panel * COLUMNS, block, n, type);
      multiply(p, panels, panel * COLUMNS, block, n, parts_of(type), type == Q4_K);
    }
  }
}

void stretto_multiply_many(const product_t *p, int64_t from, int64_t to) {
#define OF_TYPE(type) \
  case type: many(p, from, to, type); break
  switch (p->weights->type) {
    OF_TYPE(Q4_0); OF_TYPE(Q5_0); OF_TYPE(Q8_0); OF_TYPE(Q4_K); OF_TYPE(Q6_K);
  }
}
