// Products of Q8_0 matrices and floats for x86 processors with AVX-512 VNNI. llama.cpp packs no such matrix for them, and
// its product of rows takes three times as long.
//
// Activations become bytes once for a product, with a scale for each block of 32 as llama.cpp's: `quantize`. Weights are
// packed while they are used, 32 columns at a time, which costs little beside the product of many rows. A vector holds 16
// columns; its lanes sum four products of bytes at a time. Bytes of activations are unsigned (128 more than they are), so
// the sums start with what that adds, negative. What a row gives depends on it alone, not on rows or threads beside it.

#include "tower_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#include "x86_kernels.h"

const bool stretto_has_vnni_products = true;

namespace {

enum { BLOCK = 32, WORDS = BLOCK / 4, VECTORS = 2, COLUMNS = VECTORS * LANES, ROWS = STRETTO_TILE_ROWS };
enum { OFFSET = 128, STORED = 2 + BLOCK };  // STORED: bytes of a block of Q8_0, a half-precision scale before its numbers

// A block of 32 numbers of `ROWS` activations.
struct Block {
    uint8_t numbers[WORDS][ROWS][4];
    float scales[ROWS];
};
static_assert(sizeof(Block) == STRETTO_TILE_BYTES, "the graph gives it this much room");

// A block of 32 numbers of 32 columns.
struct Panel {
    int32_t numbers[WORDS][VECTORS][LANES];
    float scales[VECTORS][LANES];
    int32_t starts[VECTORS][LANES];
};

void quantize_block(Block * to, int row, const float * from) {
    const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + LANES);
    const __m512 most = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
    const __m512 infinity = _mm512_set1_ps(__builtin_inff());
    const __mmask16 broken = _mm512_cmp_ps_mask(_mm512_abs_ps(low), infinity, _CMP_NLT_UQ) |
                             _mm512_cmp_ps_mask(_mm512_abs_ps(high), infinity, _CMP_NLT_UQ);
    const float scale = _mm512_reduce_max_ps(most) / 127;
    const __m512 inverse = _mm512_set1_ps(scale > 0 ? 1 / scale : 0);
    const __m512i offset = _mm512_set1_epi32(OFFSET);
    const __m512i first = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)), offset);
    const __m512i second = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)), offset);
    alignas(16) uint8_t bytes[WORDS][4];
    _mm_store_si128((__m128i *) bytes[0], _mm512_cvtepi32_epi8(first));
    _mm_store_si128((__m128i *) bytes[WORDS / 2], _mm512_cvtepi32_epi8(second));
    for (int i = 0; i < WORDS; i++) memcpy(to->numbers[i][row], bytes[i], 4);
    to->scales[row] = broken ? __builtin_nanf("") : scale;
}

// Columns from `column`; beyond the last it is the last again.
void pack(Panel * to, const ggml_tensor * matrix, int64_t column) {
    const __m512i last = _mm512_set1_epi32((int) (matrix->ne[1] - 1 - column));
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi8(1);
    __m512i at[VECTORS];
    for (int i = 0; i < VECTORS; i++) {
        const __m512i column_of = _mm512_min_epi32(_mm512_add_epi32(stride(1), _mm512_set1_epi32(i * LANES)), last);
        at[i] = _mm512_mullo_epi32(column_of, _mm512_set1_epi32((int) matrix->nb[1]));
    }
    const char * from = (const char *) matrix->data + column * matrix->nb[1];
    for (int64_t block = 0; block < matrix->ne[0] / BLOCK; block++, from += STORED, to++) {
        for (int i = 0; i < VECTORS; i++) {
            __m512i sum = zero;
            for (int word = 0; word < WORDS; word++) {
                const __m512i numbers = _mm512_i32gather_epi32(at[i], from + 2 + 4 * word, 1);
                sum = _mm512_dpbusd_epi32(sum, ones, numbers);
                _mm512_store_si512(to->numbers[word][i], numbers);
            }
            const __m256i scales = _mm512_cvtepi32_epi16(_mm512_i32gather_epi32(at[i], from, 1));
            _mm512_store_ps(to->scales[i], _mm512_cvtph_ps(scales));
            _mm512_store_si512(to->starts[i], _mm512_mullo_epi32(sum, _mm512_set1_epi32(-OFFSET)));
        }
    }
}

// `rows` rows of a tile, times 32 columns.
template <int rows>
void multiply(const Block * tile, const Panel * panel, int64_t blocks, float * to, int64_t columns, int64_t left) {
    __m512 sums[rows][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks; block++, tile++, panel++) {
        __m512i whole[rows][VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            whole[i][0] = _mm512_load_si512(panel->starts[0]);
            whole[i][1] = _mm512_load_si512(panel->starts[1]);
        }
#pragma GCC unroll 8
        for (int word = 0; word < WORDS; word++) {
            const __m512i first = _mm512_load_si512(panel->numbers[word][0]), second = _mm512_load_si512(panel->numbers[word][1]);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                int four;
                memcpy(&four, tile->numbers[word][i], 4);
                whole[i][0] = _mm512_dpbusd_epi32(whole[i][0], _mm512_set1_epi32(four), first);
                whole[i][1] = _mm512_dpbusd_epi32(whole[i][1], _mm512_set1_epi32(four), second);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const __m512 scale = _mm512_set1_ps(tile->scales[i]);
            for (int j = 0; j < VECTORS; j++) {
                const __m512 both = _mm512_mul_ps(scale, _mm512_load_ps(panel->scales[j]));
                sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[i][j]), both, sums[i][j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            _mm512_mask_storeu_ps(to + i * columns + j * LANES, lanes(left - j * LANES), sums[i][j]);
        }
    }
}

typedef void multiply_t(const Block *, const Panel *, int64_t, float *, int64_t, int64_t);
multiply_t * const BY_ROWS[] = {nullptr, multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};

// What follows the products of some rows and 32 columns, which begin at number `at` of the result.
void finish(ggml_tensor * out, int64_t at, int rows, bool has_gelu) {
    const int64_t columns = out->ne[0], column = at % columns;
    const float * bias = out->src[2] != nullptr ? (const float *) out->src[2]->data : nullptr;
    const float * added = out->src[3] != nullptr ? (const float *) out->src[3]->data : nullptr;
    if (bias == nullptr && added == nullptr && !has_gelu) return;
    for (int j = 0; j < COLUMNS; j += LANES) {
        const __mmask16 some = lanes(columns - column - j);
        const __m512 shift = bias != nullptr ? _mm512_maskz_loadu_ps(some, bias + column + j) : _mm512_setzero_ps();
        for (int i = 0; i < rows; i++) {
            const int64_t number = at + i * columns + j;
            float * to = (float *) out->data + number;
            __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(some, to), shift);
            if (added != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, added + number));
            _mm512_mask_storeu_ps(to, some, has_gelu ? gelu(sum) : sum);
        }
    }
}

}  // namespace

extern "C" void stretto_quantize_by_avx512(ggml_tensor * out, int ith, int nth, void *) {
    const ggml_tensor * given = out->src[0];
    const int64_t rows = ggml_nrows(given), blocks = given->ne[0] / BLOCK, tiles = out->ne[1];
    const int64_t last = tiles * (ith + 1) / nth * ROWS;
    for (int64_t row = tiles * ith / nth * ROWS; row < (last < rows ? last : rows); row++) {
        const int64_t plane = row / given->ne[1];
        const char * from = (const char *) given->data + row % given->ne[1] * given->nb[1] +
                            plane % given->ne[2] * given->nb[2] + plane / given->ne[2] * given->nb[3];
        Block * to = (Block *) ((char *) out->data + row / ROWS * out->nb[1]);
        for (int64_t block = 0; block < blocks; block++) {
            quantize_block(to + block, row % ROWS, (const float *) from + block * BLOCK);
        }
    }
}

extern "C" void stretto_multiply_by_vnni(ggml_tensor * out, int ith, int nth, void * has_gelu) {
    const ggml_tensor * given = out->src[0], * matrix = out->src[1];
    const int64_t blocks = matrix->ne[0] / BLOCK, columns = matrix->ne[1], rows = ggml_nrows(out);
    const int64_t tiles = (rows + ROWS - 1) / ROWS, tasks = up(columns, COLUMNS) / COLUMNS * tiles;
    Panel * panel = (Panel *) reserve(blocks * sizeof(Panel));
    int64_t packed = -1;
    for (int64_t task = tasks * ith / nth; task < tasks * (ith + 1) / nth; task++) {
        const int64_t column = task / tiles * COLUMNS, tile = task % tiles, row = tile * ROWS;
        if (packed != column) {
            packed = column;
            pack(panel, matrix, column);
        }
        const Block * from = (const Block *) ((const char *) given->data + tile * given->nb[1]);
        const int64_t at = row * columns + column;
        const int some = rows - row < ROWS ? (int) (rows - row) : (int) ROWS;
        BY_ROWS[some](from, panel, blocks, (float *) out->data + at, columns, columns - column);
        finish(out, at, some, has_gelu != nullptr);
    }
}

#else

const bool stretto_has_vnni_products = false;

extern "C" void stretto_quantize_by_avx512(ggml_tensor *, int, int, void *) { GGML_ABORT("compiled without AVX-512"); }
extern "C" void stretto_multiply_by_vnni(ggml_tensor *, int, int, void *) { GGML_ABORT("compiled without VNNI"); }

#endif
