// Rows of a batch times quantized weights, for ARM processors with dot products and without matrix instructions
// (Neoverse-N1, Cortex-A76). They replace llama.cpp's functions of the same names (`interpose.py`).
//
// A row has the same bits as alone: integers are summed exactly, and blocks are added in order with one fused
// multiply-add each, as llama.cpp's kernels for a single row do.
//
// Why they are faster, on a core that starts two vector instructions per cycle:
// - up to 16 rows share the unpacking of a block of weights (llama.cpp: 16, else 4);
// - the scales of the rows are converted once, not once for every four columns (a conversion takes two cycles);
// - no conversion of sums: they begin at the bits of 1.5 * 2^23, where a float counts in ones, so a sum is one
//   subtraction away from being a float (a conversion takes two cycles, and a load of that beginning none);
// - rows are quantized and stored 16 values at a time.

#include "weights.h"

typedef void quantize_t(const float *in, void *out, int64_t n);
typedef void halve_t(const float *in, uint16_t *out, int64_t n);

int stretto_own = 0;
int stretto_multiplied = 0;
static multiply_t *original[2];
static quantize_t *original_quantize;
static halve_t *original_halve;

// Four columns for `groups` times four rows.
INLINE void columns(int n_blocks, float *out, size_t stride, const uint8_t *weights, const bytes_t *rows,
                    const float *row_scales, int groups, weights_t kind) {
  const float32x4_t begin_as_float = vdupq_n_f32(BEGIN_AS_FLOAT);
  float32x4_t sums[GROUPS_MAX * GROUP];
  UNROLLED for (int i = 0; i < groups * GROUP; i++) sums[i] = vdupq_n_f32(0);
  for (int b = 0; b < n_blocks; b++, weights += size_of(kind)) {
    int8x16_t unpacked[8];
    const float32x4_t scales = floats((const uint16_t *)weights);
    unpack(unpacked, (const int8_t *)weights + sizeof(uint16_t) * GROUP, kind);
    UNROLLED for (int g = 0; g < groups; g++) {
      const size_t at = (size_t)g * n_blocks + b;
      add_block(sums + GROUP * g, unpacked, scales, rows[at].values, row_scales + GROUP * at, begin_as_float);
    }
  }
  UNROLLED for (int i = 0; i < groups * GROUP; i++) vst1q_f32(out + i * stride, sums[i]);
}

INLINE void multiply(int n, float *out, size_t stride, const void *weights, const void *rows, int n_rows, int n_columns,
                     weights_t kind) {
  const int n_blocks = n / BLOCK;
  if (!stretto_multiplied) stretto_multiplied = 1;
  if (!stretto_own || n_blocks > BLOCKS_MAX || n_rows % GROUP || n_columns % GROUP) {
    original[kind](n, out, stride, weights, rows, n_rows, n_columns);
    return;
  }
  float row_scales[GROUPS_MAX * GROUP * BLOCKS_MAX];
  for (int row = 0, groups; row < n_rows; row += groups * GROUP) {
    const int left = (n_rows - row) / GROUP;
    groups = left < GROUPS_MAX ? left : left == GROUPS_MAX + 1 ? GROUPS_MAX - 1 : GROUPS_MAX;  // five: three and two
    const bytes_t *these = (const bytes_t *)rows + (size_t)(row / GROUP) * n_blocks;
    for (int i = 0; i < groups * n_blocks; i++) {
      const float32x4_t scales = floats(these[i].scales);
      vst1q_f32(row_scales + GROUP * i, kind == NIBBLES ? vmulq_n_f32(scales, 1.0f / 16) : scales);
    }
    for (int column = 0; column < n_columns; column += GROUP) {
      const uint8_t *strip = (const uint8_t *)weights + (size_t)(column / GROUP) * n_blocks * size_of(kind);
      float *at = out + (size_t)row * stride + column;
      switch (groups) {
        case 1: columns(n_blocks, at, stride, strip, these, row_scales, 1, kind); break;
        case 2: columns(n_blocks, at, stride, strip, these, row_scales, 2, kind); break;
        case 3: columns(n_blocks, at, stride, strip, these, row_scales, 3, kind); break;
        default: columns(n_blocks, at, stride, strip, these, row_scales, 4, kind); break;
      }
    }
  }
}

// ── under llama.cpp's names ──────────────────────────────────────────────────────────────────────

void ggml_gemm_q4_0_4x4_q8_0(int n, float *out, size_t stride, const void *weights, const void *rows, int n_rows,
                             int n_columns) {
  multiply(n, out, stride, weights, rows, n_rows, n_columns, NIBBLES);
}

void ggml_gemm_q8_0_4x4_q8_0(int n, float *out, size_t stride, const void *weights, const void *rows, int n_rows,
                             int n_columns) {
  multiply(n, out, stride, weights, rows, n_rows, n_columns, BYTES);
}

void ggml_quantize_mat_q8_0_4x4(const float *in, void *out, int64_t n) {
  if (!stretto_own) {
    original_quantize(in, out, n);
    return;
  }
  bytes_t *block = out;
  for (int64_t b = 0; b < n / BLOCK; b++, block++) {
    for (int row = 0; row < GROUP; row++) {
      const float *from = in + row * n + b * BLOCK;
      float32x4_t values[8], most[8];
      UNROLLED for (int j = 0; j < 8; j++) values[j] = vld1q_f32(from + 4 * j);
      UNROLLED for (int j = 0; j < 8; j++) most[j] = vabsq_f32(values[j]);
      UNROLLED for (int j = 0; j < 4; j++) most[j] = vmaxq_f32(most[j], most[j + 4]);
      const float largest = vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[2]), vmaxq_f32(most[1], most[3])));
      const float scale = largest / 127;
      const float inverse = scale ? 1.0f / scale : 0.0f;
      const __fp16 half = scale;
      __builtin_memcpy(&block->scales[row], &half, sizeof half);
      UNROLLED for (int j = 0; j < 8; j += 4) {
        int32x4_t whole[4];
        UNROLLED for (int i = 0; i < 4; i++) whole[i] = vcvtnq_s32_f32(vmulq_n_f32(values[j + i], inverse));
        const int16x8_t low = vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]));
        const int16x8_t high = vcombine_s16(vmovn_s32(whole[2]), vmovn_s32(whole[3]));
        const int32x4_t fours = vreinterpretq_s32_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        int32_t *to = (int32_t *)(block->values + 16 * j + 4 * row);
        vst1q_lane_s32(to, fours, 0);
        vst1q_lane_s32(to + 4, fours, 1);
        vst1q_lane_s32(to + 8, fours, 2);
        vst1q_lane_s32(to + 12, fours, 3);
      }
    }
  }
}

void ggml_cpu_fp32_to_fp16(const float *in, uint16_t *out, int64_t n) {
  if (!stretto_own) {
    original_halve(in, out, n);
    return;
  }
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(in + i));
    vst1q_u16(out + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(in + i + 4))));
  }
  for (; i < n; i++) {
    const __fp16 half = in[i];
    __builtin_memcpy(&out[i], &half, sizeof half);
  }
}

void stretto_original_matrices(multiply_t *nibbles, multiply_t *bytes, quantize_t *quantize, halve_t *halve) {
  original[NIBBLES] = nibbles;
  original[BYTES] = bytes;
  original_quantize = quantize;
  original_halve = halve;
}
