// Blocks of quantized weights, sixteen columns at a time, in one form for all types.
//
// A block is 32 numbers of a column, eight words of four; a vector holds one word of each column. A scale belongs to a
// block, in Q6_K weights to half of one. Q4_0 and Q4_K weights come as llama.cpp repacks them, by eight columns (a strip).

#pragma once

#include "tensors.h"

enum { BLOCK = 32, WORDS = BLOCK / 4, LANES = 16, STRIP = 8, SUPER = 8 };  // SUPER: blocks of a K type that lie together
enum { AHEAD = 16 };                                                       // blocks that are fetched ahead of their use

typedef struct { uint16_t scale; int8_t numbers[BLOCK]; } q8_0_t;
typedef struct { uint16_t scale; uint32_t high; uint8_t low[BLOCK / 2]; } __attribute__((packed)) q5_0_t;
typedef struct { uint16_t scales[STRIP]; uint8_t numbers[STRIP * BLOCK / 2]; } q4_0x8_t;
typedef struct {
  uint16_t scales[STRIP], minima[STRIP];
  uint32_t packed[SUPER][3];  // of each block: scales and minima of eight columns, six bits each
  uint8_t numbers[SUPER / 2][STRIP * BLOCK];  // of two blocks
} q4_kx8_t;
typedef struct { uint8_t low[2][2][BLOCK], high[2][BLOCK]; int8_t scales[2 * SUPER]; uint16_t scale; } q6_k_t;

// Numbers are unsigned bytes, which are too large by the `middle_of` their type. The second scale is that of the second
// half of a Q6_K block, or the minimum of a Q4_K block.
typedef struct { __m512i words[WORDS]; __m512 scales[2]; } block_t;

// Where sixteen columns begin; those beyond the last are the last again. With what blocks of a K type share: it is made
// with the first of them.
typedef struct {
  const char *at[LANES];   // of each column, or of the two strips
  int32_t offsets[LANES];  // of columns, in bytes
  __m512i packed[24], packed_scales[4];
  __m512 scale;
} columns_t;

INLINE bool is_repacked(int type) { return type == Q4_0 || type == Q4_K; }
INLINE int parts_of(int type) { return type == Q6_K ? 2 : 1; }
INLINE int middle_of(int type) {
  switch (type) {
    case Q4_0: return 8;
    case Q5_0: return 16;
    case Q6_K: return 32;
    case Q8_0: return 128;
    default: return 0;
  }
}

// Of eight blocks of a column, or of a strip.
INLINE int64_t bytes_of(int type) {
  switch (type) {
    case Q4_0: return SUPER * sizeof(q4_0x8_t);
    case Q5_0: return SUPER * sizeof(q5_0_t);
    case Q4_K: return sizeof(q4_kx8_t);
    case Q6_K: return sizeof(q6_k_t);
    default: return SUPER * sizeof(q8_0_t);
  }
}

// From a block that is a multiple of eight.
INLINE void find_columns(columns_t *c, const tensor *weights, int64_t first, int64_t block, int type) {
  const int64_t unit = is_repacked(type) ? STRIP : 1, n = weights->ne[1] / unit;
  const int64_t bytes = weights->ne[0] / BLOCK * bytes_of(type) / SUPER;
  for (int i = 0; i < LANES / unit; i++) {
    const int64_t at = first / unit + i < n ? first / unit + i : n - 1;
    c->at[i] = weights->data + at * bytes + block / SUPER * bytes_of(type);
    c->offsets[i] = (int32_t)(c->at[i] - c->at[0]);
  }
}

// Blocks that are used soon: of these columns, or of the sixteen after them.
INLINE void fetch(const columns_t *c, int64_t block, int64_t n_blocks, int type) {
  const int n = is_repacked(type) ? LANES / STRIP : LANES;
  if (!is_repacked(type) && block % 2) return;  // two are little more than a cache line
  const int64_t at = (block + AHEAD + (block + AHEAD < n_blocks ? 0 : (n - 1) * n_blocks)) * (bytes_of(type) / SUPER);
  UNROLLED for (int i = 0; i < n; i++) {
    _mm_prefetch(c->at[i] + at, _MM_HINT_T0);
    if (!is_repacked(type)) continue;
    _mm_prefetch(c->at[i] + at + 64, _MM_HINT_T0);
    _mm_prefetch(c->at[i] + at + 128, _MM_HINT_T0);
  }
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

// Two words of each of eight columns, and of eight more, as two words of sixteen.
INLINE void join(__m512i *first, __m512i *second, const void *left, const void *right) {
  const __m512i ones = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i even = _mm512_add_epi32(ones, ones), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512i l = _mm512_loadu_si512(left), r = _mm512_loadu_si512(right);
  *first = _mm512_permutex2var_epi32(l, even, r);
  *second = _mm512_permutex2var_epi32(l, odd, r);
}

// The bits of `mask`, with those of `flip` turned over.
INLINE __m512i chosen(__m512i bits, __m512i mask, __m512i flip) { return _mm512_ternarylogic_epi32(bits, mask, flip, 0x6a); }

INLINE __m512 halves_of(const uint16_t *left, const uint16_t *right) {
  const __m128i l = _mm_loadu_si128((const __m128i *)left), r = _mm_loadu_si128((const __m128i *)right);
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(l), r, 1));
}

INLINE __m512i gather(const columns_t *c, int64_t from) {
  return _mm512_i32gather_epi32(_mm512_loadu_si512(c->offsets), c->at[0] + from, 1);
}

INLINE void unpack_q8_0(block_t *out, const columns_t *c, int64_t block) {
  const int64_t from = block * sizeof(q8_0_t) + sizeof(uint16_t);
  transpose(out->words, c, from);
  transpose(out->words + WORDS / 2, c, from + BLOCK / 2);
  UNROLLED for (int i = 0; i < WORDS; i++) out->words[i] = _mm512_xor_si512(out->words[i], _mm512_set1_epi8((char)0x80));
  out->scales[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(gather(c, block * sizeof(q8_0_t))));
}

// Five bits: four in `low`, and one bit for each number in `high`.
INLINE void unpack_q5_0(block_t *out, const columns_t *c, int64_t block) {
  const int64_t from = block * sizeof(q5_0_t);
  const __m512i mask = _mm512_set1_epi8(0x0f);
  // Four bits as the fifth bits of four bytes.
  const __m512i spread = _mm512_set_epi32(0x10101010, 0x10101000, 0x10100010, 0x10100000, 0x10001010, 0x10001000, 0x10000010,
                                          0x10000000, 0x00101010, 0x00101000, 0x00100010, 0x00100000, 0x00001010, 0x00001000,
                                          0x00000010, 0x00000000);
  const __m512i high = gather(c, from + offsetof(q5_0_t, high));
  transpose(out->words, c, from + offsetof(q5_0_t, low));
  UNROLLED for (int i = 0; i < WORDS / 2; i++) {
    const __m512i fifth = _mm512_permutexvar_epi32(_mm512_srli_epi32(high, 4 * i), spread);
    const __m512i other = _mm512_permutexvar_epi32(_mm512_srli_epi32(high, 4 * i + BLOCK / 2), spread);
    out->words[WORDS / 2 + i] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(out->words[i], 4), mask, other, 0xea);
    out->words[i] = _mm512_ternarylogic_epi32(out->words[i], mask, fifth, 0xea);  // (bits & mask) | fifth
  }
  out->scales[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(gather(c, from)));
}

// Two nibbles in a byte. llama.cpp repacks them signed.
INLINE void unpack_q4_0(block_t *out, const columns_t *c, int64_t block) {
  const __m512i mask = _mm512_set1_epi8(0x0f), flip = _mm512_set1_epi8(0x08);
  const q4_0x8_t *left = (const q4_0x8_t *)c->at[0] + block, *right = (const q4_0x8_t *)c->at[1] + block;
  UNROLLED for (int half = 0; half < 2; half++) {
    __m512i first, second;
    join(&first, &second, left->numbers + 64 * half, right->numbers + 64 * half);
    out->words[2 * half] = chosen(first, mask, flip);
    out->words[2 * half + 1] = chosen(second, mask, flip);
    out->words[4 + 2 * half] = chosen(_mm512_srli_epi32(first, 4), mask, flip);
    out->words[5 + 2 * half] = chosen(_mm512_srli_epi32(second, 4), mask, flip);
  }
  out->scales[0] = halves_of(left->scales, right->scales);
}

// Six bits of each of eight columns: the lower ones of the last four, which are `shift` bits up, are in `rest`.
INLINE uint64_t six_bits(uint32_t bits, uint32_t rest, int shift) {
  const uint32_t high = ((rest >> shift) & 0x0f0f0f0f) | (((bits >> 6) & 0x03030303) << 4);
  return (bits & 0x3f3f3f3f) | (uint64_t)high << 32;
}

INLINE __m512 bytes_as_floats(uint64_t left, uint64_t right) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x((long long)right, (long long)left)));
}

INLINE void unpack_q4_k(block_t *out, const columns_t *c, int64_t block) {
  const int at = block % SUPER;
  const __m512i mask = _mm512_set1_epi8(0x0f);
  const __m128i shift = _mm_cvtsi32_si128(at % 2 * 4);
  const q4_kx8_t *left = (const q4_kx8_t *)c->at[0] + block / SUPER, *right = (const q4_kx8_t *)c->at[1] + block / SUPER;
  UNROLLED for (int i = 0; i < 4; i++) {
    __m512i first, second;
    join(&first, &second, left->numbers[at / 2] + 64 * i, right->numbers[at / 2] + 64 * i);
    out->words[2 * i] = _mm512_and_si512(_mm512_srl_epi32(first, shift), mask);
    out->words[2 * i + 1] = _mm512_and_si512(_mm512_srl_epi32(second, shift), mask);
  }
  const uint32_t *l = left->packed[at], *r = right->packed[at];
  const __m512 scales = bytes_as_floats(six_bits(l[0], l[2], 0), six_bits(r[0], r[2], 0));
  const __m512 minima = bytes_as_floats(six_bits(l[1], l[2], 4), six_bits(r[1], r[2], 4));
  out->scales[0] = _mm512_mul_ps(scales, halves_of(left->scales, right->scales));
  out->scales[1] = _mm512_mul_ps(minima, halves_of(left->minima, right->minima));
}

// Six bits: four in `low`, two in `high`.
INLINE void unpack_q6_k(block_t *out, columns_t *c, int64_t block) {
  const int at = block % 4, half = block % SUPER / 4;
  const int64_t from = block / SUPER * sizeof(q6_k_t);
  const __m512i four = _mm512_set1_epi8(0x0f), six = _mm512_set1_epi8(0x3f);
  const __m128i shift = _mm_cvtsi32_si128(at / 2 * 4);
  const __m512i turn = _mm512_set1_epi32(4 - at * 2);
  if (at == 0) {
    UNROLLED for (int i = 0; i < 4; i++) {
      transpose(c->packed + 4 * i, c, from + offsetof(q6_k_t, low) + half * 2 * BLOCK + i * BLOCK / 2);
      if (i < 2) transpose(c->packed + 16 + 4 * i, c, from + offsetof(q6_k_t, high) + half * BLOCK + i * BLOCK / 2);
    }
  }
  UNROLLED for (int i = 0; i < WORDS; i++) {
    const __m512i low = _mm512_srl_epi32(c->packed[at % 2 * WORDS + i], shift), high = _mm512_rolv_epi32(c->packed[16 + i], turn);
    const __m512i both = _mm512_ternarylogic_epi32(four, low, high, 0xca);  // bits of `low` where `four` has them
    out->words[i] = _mm512_and_si512(both, six);
  }
  if (block % SUPER == 0) {
    transpose(c->packed_scales, c, from + offsetof(q6_k_t, scales));
    // The last two bytes of a column are its scale: a gather of four would read beyond it.
    const __m512i scale = _mm512_srli_epi32(gather(c, from + offsetof(q6_k_t, scale) - 2), 16);
    c->scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(scale));
  }
  const __m512i two = _mm512_srl_epi32(c->packed_scales[block % SUPER / 2], _mm_cvtsi32_si128(block % 2 * 16));
  const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(two, 24), 24);
  const __m512i second = _mm512_srai_epi32(_mm512_slli_epi32(two, 16), 24);
  out->scales[0] = _mm512_mul_ps(c->scale, _mm512_cvtepi32_ps(first));
  out->scales[1] = _mm512_mul_ps(c->scale, _mm512_cvtepi32_ps(second));
}

INLINE void unpack(block_t *out, columns_t *c, int64_t block, int type) {
  switch (type) {
    case Q4_0: unpack_q4_0(out, c, block); break;
    case Q5_0: unpack_q5_0(out, c, block); break;
    case Q4_K: unpack_q4_k(out, c, block); break;
    case Q6_K: unpack_q6_k(out, c, block); break;
    default: unpack_q8_0(out, c, block); break;
  }
}
