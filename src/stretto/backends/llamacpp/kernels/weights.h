// Quantized weights as llama.cpp repacks them by four columns, and how a block of them is computed with.

#include "interpose.h"

enum { BLOCK = 32, GROUP = 4, GROUPS_MAX = 4, BLOCKS_MAX = 1024 };

// Four rows, or four columns of weights, in one: four scales (half precision), then values of each, interleaved by four.
typedef struct { uint16_t scales[GROUP]; int8_t values[GROUP * BLOCK]; } bytes_t;
typedef struct { uint16_t scales[GROUP]; int8_t values[GROUP * BLOCK / 2]; } nibbles_t;

typedef enum { NIBBLES, BYTES } weights_t;

#define BEGIN 0x4B400000
static const int32_t begin[4] = {BEGIN, BEGIN, BEGIN, BEGIN};
static const float BEGIN_AS_FLOAT = 12582912.0f;

INLINE float32x4_t floats(const uint16_t *halves) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))); }

// Signed nibbles are sixteen times too large; the scales of the rows compensate.
INLINE void unpack(int8x16_t out[8], const int8_t *values, weights_t kind) {
  if (kind == NIBBLES) {
    UNROLLED for (int j = 0; j < 4; j++) {
      const int8x16_t both = vld1q_s8(values + 16 * j);
      out[j] = vshlq_n_s8(both, 4);
      out[j + 4] = vandq_s8(both, vdupq_n_s8((int8_t)0xf0));
    }
  } else {
    UNROLLED for (int j = 0; j < 8; j++) out[j] = vld1q_s8(values + 16 * j);
  }
}

INLINE size_t size_of(weights_t kind) { return kind == NIBBLES ? sizeof(nibbles_t) : sizeof(bytes_t); }

// Adds one block: four rows times four columns. In assembly because compilers put moves between the sums.
INLINE void add_block(float32x4_t sums[GROUP], const int8x16_t weights[8], float32x4_t weight_scales,
                      const int8_t *rows, const float *row_scales, float32x4_t begin_as_float) {
  int32x4_t x0, x1, x2, x3, even, odd;
#define TIMES(w, rows)                                    \
  "sdot %[x0].4s, %[" w "].16b, %[" rows "].4b[0]\n"      \
  "sdot %[x1].4s, %[" w "].16b, %[" rows "].4b[1]\n"      \
  "sdot %[x2].4s, %[" w "].16b, %[" rows "].4b[2]\n"      \
  "sdot %[x3].4s, %[" w "].16b, %[" rows "].4b[3]\n"
#define SCALED(i)                                         \
  "fsub %[x" i "].4s, %[x" i "].4s, %[begin].4s\n"        \
  "fmul %[odd].4s, %[scales].4s, %[even].s[" i "]\n"      \
  "fmla %[sum" i "].4s, %[x" i "].4s, %[odd].4s\n"
  __asm__(
      "ldr %q[x0], [%[begin_at]]\n"
      "ldr %q[x1], [%[begin_at]]\n"
      "ldr %q[x2], [%[begin_at]]\n"
      "ldr %q[x3], [%[begin_at]]\n"
      "ldr %q[even], [%[rows]]\n" TIMES("w0", "even")
      "ldr %q[odd], [%[rows], #16]\n" TIMES("w1", "odd")
      "ldr %q[even], [%[rows], #32]\n" TIMES("w2", "even")
      "ldr %q[odd], [%[rows], #48]\n" TIMES("w3", "odd")
      "ldr %q[even], [%[rows], #64]\n" TIMES("w4", "even")
      "ldr %q[odd], [%[rows], #80]\n" TIMES("w5", "odd")
      "ldr %q[even], [%[rows], #96]\n" TIMES("w6", "even")
      "ldr %q[odd], [%[rows], #112]\n" TIMES("w7", "odd")
      "ldr %q[even], [%[row_scales]]\n" SCALED("0") SCALED("1") SCALED("2") SCALED("3")
      : [sum0] "+w"(sums[0]), [sum1] "+w"(sums[1]), [sum2] "+w"(sums[2]), [sum3] "+w"(sums[3]), [x0] "=&w"(x0),
        [x1] "=&w"(x1), [x2] "=&w"(x2), [x3] "=&w"(x3), [even] "=&w"(even), [odd] "=&w"(odd)
      : [w0] "w"(weights[0]), [w1] "w"(weights[1]), [w2] "w"(weights[2]), [w3] "w"(weights[3]), [w4] "w"(weights[4]),
        [w5] "w"(weights[5]), [w6] "w"(weights[6]), [w7] "w"(weights[7]), [scales] "w"(weight_scales),
        [begin] "w"(begin_as_float), [begin_at] "r"(begin), [rows] "r"(rows), [row_scales] "r"(row_scales)
      : "memory");
}

// `gemm.c`: rows in fours, under llama.cpp's names.
typedef void multiply_t(int n, float *out, size_t stride, const void *weights, const void *rows, int n_rows, int n_columns);
multiply_t ggml_gemm_q4_0_4x4_q8_0, ggml_gemm_q8_0_4x4_q8_0;
void ggml_quantize_mat_q8_0_4x4(const float *in, void *out, int64_t n);
