// Quantized rows, and the two ways to multiply them: `x86_few_rows.c` and `x86_tiles.c`.

#pragma once

#include <string.h>

#include "x86_weights.h"

enum { VECTORS = 2, COLUMNS = VECTORS * LANES };  // of a panel
enum { FEW = 8 };                                 // rows, at most
enum { BLOCKS_MAX = 1024 };                       // of a row

// Quantized rows: bytes of each row, one row after the other; a scale for each block; for weights with minima also the sum
// of each block. The instruction multiplies unsigned bytes by signed ones. A few rows are signed: they are multiplied by
// weights as these come, and the sums of rows make up for what weights are too large. Many rows are unsigned, 128 too large,
// and sums of weights, made once for all rows, make up for it.
typedef struct {
  const tensor *out, *weights, *in;
  uint8_t *bytes;
  uint16_t *scales;
  int16_t *sums;
  int64_t n_blocks, n_rows;
} product_t;

// All rows times some panels of 32 columns. The result is the same, and a matter of speed.
void stretto_multiply_few(const product_t *p, int64_t from, int64_t to);
void stretto_multiply_many(const product_t *p, int64_t from, int64_t to);

// A pointer to what a thread has of its own, found once: the compiler would call a function at each use.
#define FOUND(pointer) __asm__("" : "+r"(pointer))

INLINE __mmask16 lanes(int64_t n) { return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

// Scales and scaled sums of some blocks of a row.
static void to_floats(const product_t *p, float *scales, float *sums, int64_t block, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) {
    const __mmask16 some = lanes(n - i);
    const __m512 scale = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p->scales + block + i));
    _mm512_mask_storeu_ps(scales + i, some, scale);
    if (!p->sums) continue;
    const __m512i sum = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(some, p->sums + block + i));
    _mm512_mask_storeu_ps(sums + i, some, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
  }
}

INLINE __m512i words_of(const uint8_t *row, int word) {
  int four;
  memcpy(&four, row + 4 * word, sizeof four);
  return _mm512_set1_epi32(four);
}

