// Attention of towers for x86 processors with AMX. llama.cpp's takes ten times as long.
//
// 32 queries at a time. Products are of bf16 numbers with sums in single precision, as on GPUs; everything between them is
// in single precision, so the result is some 0.3 % off. Scores are computed as keys times queries, so that a vector holds 16
// queries: maxima and sums run from vector to vector, never across one. What a row gives depends on its query, the keys and
// the values, not on the rows beside it.

#include "tower_kernels.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__)

#include "x86_kernels.h"

const bool stretto_has_amx_attention = true;

namespace {

enum { PAIRS = 2 * LANES, BLOCKS = 2, QUERIES = BLOCKS * LANES, TILE = LANES * LANES };  // TILE: in 4 bytes
enum { TILE_BYTES = 64 };  // of a tile's row

struct config_t {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

// ggml configures the tiles of a thread once, for its own kernels: they are restored.
class Tiles {
public:
    Tiles() {
        __asm__ volatile("sttilecfg\t%0" : "=m"(before));
        config_t mine = {};
        mine.palette = 1;
        for (int i = 0; i < 8; i++) mine.bytes[i] = TILE_BYTES, mine.rows[i] = LANES;
        _tile_loadconfig(&mine);
    }
    ~Tiles() { _tile_loadconfig(&before); }

private:
    alignas(64) config_t before;
};

struct Buffers {
    uint16_t * keys;     // [key][number], bf16
    uint32_t * values;   // tiles of [number][pair of keys], by 16 numbers and then by 32 keys
    uint32_t * queries;  // tiles of [pair of numbers][query], by 32 numbers and then by block of queries
    float * scores;      // [block of queries][key][query]
    uint32_t * weights;  // [block of queries][pair of keys][query]
};

Buffers allocate(int64_t keys, int64_t size) {
    const size_t parts[] = {(size_t)(keys * size * 2), (size_t)(keys * size * 2), (size_t)(QUERIES * size * 2),
                            (size_t)(QUERIES * keys * 4), (size_t)(QUERIES * keys * 2)};
    size_t bytes = 0;
    for (size_t part : parts) bytes += up(part, 64);
    char * at = reserve(bytes);
    void * found[5];
    for (int i = 0; i < 5; at += up(parts[i], 64), i++) found[i] = at;
    return {(uint16_t *) found[0], (uint32_t *) found[1], (uint32_t *) found[2], (float *) found[3], (uint32_t *) found[4]};
}

// 32 numbers of a row as bf16; zero beyond its end.
inline __m512i numbers(const float * row, int64_t from, int64_t size, __m512 scale) {
    const __m512 low = _mm512_maskz_loadu_ps(lanes(size - from), row + from);
    const __m512 high = _mm512_maskz_loadu_ps(lanes(size - from - LANES), row + from + LANES);
    return (__m512i) _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
}

// Pairs of bf16: the first in the lower half.
inline __m512i pairs(__m512 first, __m512 second) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i) _mm512_cvtneps_pbh(first));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i) _mm512_cvtneps_pbh(second));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

void pack_keys(uint16_t * to, const char * from, size_t bytes, int64_t n, int64_t size) {
    const int64_t padded = up(size, PAIRS);
    for (int64_t key = 0; key < up(n, PAIRS); key++) {
        const float * row = (const float *) (from + key * bytes);
        for (int64_t d = 0; d < padded; d += PAIRS) {
            const __m512i packed = key < n ? numbers(row, d, size, _mm512_set1_ps(1)) : _mm512_setzero_si512();
            _mm512_store_si512(to + key * padded + d, packed);
        }
    }
}

void pack_values(uint32_t * to, const char * from, size_t bytes, int64_t n, int64_t size) {
    const __m512i rows = stride(LANES);
    for (int64_t d = 0; d < up(size, PAIRS); d += LANES) {
        for (int64_t key = 0; key < up(n, PAIRS); key += 2) {
            const float * first = (const float *) (from + key * bytes) + d;
            const float * second = (const float *) (from + (key + 1) * bytes) + d;
            const __mmask16 some = lanes(size - d);
            const __m512 a = key < n ? _mm512_maskz_loadu_ps(some, first) : _mm512_setzero_ps();
            const __m512 b = key + 1 < n ? _mm512_maskz_loadu_ps(some, second) : _mm512_setzero_ps();
            uint32_t * tile = to + (d / LANES * (up(n, PAIRS) / PAIRS) + key / PAIRS) * TILE;
            _mm512_i32scatter_epi32(tile + key % PAIRS / 2, rows, pairs(a, b), 4);
        }
    }
}

void pack_queries(uint32_t * to, const char * from, size_t bytes, int n, int64_t size, float scale) {
    const __m512i rows = stride(LANES);
    for (int query = 0; query < QUERIES; query++) {
        const float * row = (const float *) (from + query * bytes);
        for (int64_t d = 0; d < size; d += PAIRS) {
            const __m512i packed = query < n ? numbers(row, d, size, _mm512_set1_ps(scale)) : _mm512_setzero_si512();
            uint32_t * tile = to + (d / PAIRS * BLOCKS + query / LANES) * TILE;
            _mm512_i32scatter_epi32(tile + query % LANES, rows, packed, 4);
        }
    }
}

void score(const Buffers & at, int64_t keys, int64_t size) {
    const int64_t padded = up(size, PAIRS);
    float * second = at.scores + keys * LANES;
    for (int64_t key = 0; key < keys; key += LANES) {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t d = 0; d < size; d += PAIRS) {
            const uint32_t * queries = at.queries + d / PAIRS * BLOCKS * TILE;
            _tile_loadd(2, at.keys + key * padded + d, padded * sizeof(uint16_t));
            _tile_loadd(3, queries, TILE_BYTES);
            _tile_loadd(4, queries + TILE, TILE_BYTES);
            _tile_dpbf16ps(0, 2, 3);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, at.scores + key * LANES, TILE_BYTES);
        _tile_stored(1, second + key * LANES, TILE_BYTES);
    }
}

// Scores of 16 queries to weights. Returns their totals.
__m512 weigh(uint32_t * weights, const float * scores, int64_t n, int64_t keys) {
    __m512 most[4];
    for (int i = 0; i < 4; i++) most[i] = _mm512_loadu_ps(scores);
    int64_t key = 0;
    for (; key + 4 <= n; key += 4) {
        for (int i = 0; i < 4; i++) most[i] = _mm512_max_ps(most[i], _mm512_load_ps(scores + (key + i) * LANES));
    }
    for (; key < n; key++) most[0] = _mm512_max_ps(most[0], _mm512_load_ps(scores + key * LANES));
    const __m512 top = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (key = 0; key < keys; key += 2) {
        const float * at = scores + key * LANES;
        __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
        if (key < n) first = power_of_2(_mm512_sub_ps(_mm512_load_ps(at), top));
        if (key + 1 < n) second = power_of_2(_mm512_sub_ps(_mm512_load_ps(at + LANES), top));
        total[0] = _mm512_add_ps(total[0], first);
        total[1] = _mm512_add_ps(total[1], second);
        _mm512_store_si512(weights + key / 2 * LANES, pairs(first, second));
    }
    return _mm512_add_ps(total[0], total[1]);
}

// Numbers `d` to `d + 16` of the results of 16 queries.
void put(char * to, const float * sums, __m512 inverse, int n, int64_t d, int64_t size, size_t bytes) {
    const __m512i rows = stride((int) (bytes / sizeof(float)));
    for (int64_t i = 0; i < LANES && d + i < size; i++) {
        const __m512 found = _mm512_mul_ps(_mm512_load_ps(sums + i * LANES), inverse);
        _mm512_mask_i32scatter_ps((float *) to + d + i, lanes(n), rows, found, sizeof(float));
    }
}

void add_values(const Buffers & at, const __m512 * inverse, char * out, int n, int64_t keys, int64_t size, size_t bytes) {
    alignas(64) float sums[4][TILE];
    const int64_t chunks = keys / PAIRS;
    const uint32_t * second = at.weights + keys / 2 * LANES;
    for (int64_t d = 0; d < size; d += PAIRS) {
        const uint32_t * values = at.values + d / LANES * chunks * TILE;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            _tile_loadd(4, values + chunk * TILE, TILE_BYTES);
            _tile_loadd(5, at.weights + chunk * TILE, TILE_BYTES);
            _tile_loadd(6, second + chunk * TILE, TILE_BYTES);
            _tile_loadd(7, values + (chunks + chunk) * TILE, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 5);
            _tile_dpbf16ps(1, 4, 6);
            _tile_dpbf16ps(2, 7, 5);
            _tile_dpbf16ps(3, 7, 6);
        }
        _tile_stored(0, sums[0], TILE_BYTES);
        _tile_stored(1, sums[1], TILE_BYTES);
        _tile_stored(2, sums[2], TILE_BYTES);
        _tile_stored(3, sums[3], TILE_BYTES);
        for (int i = 0; i < 4; i++) {
            const int block = i % BLOCKS;
            put(out + block * LANES * bytes, sums[i], inverse[block], n - block * LANES, d + i / BLOCKS * LANES, size, bytes);
        }
    }
}

}  // namespace

extern "C" void stretto_attend_by_amx(ggml_tensor * out, int ith, int nth, void * scale_bits) {
    const Attention all(out, QUERIES, scale_bits);
    const int64_t n = all.keys, keys = up(n, PAIRS);
    const Buffers at = allocate(keys, up(all.size, PAIRS));
    const Tiles tiles;
    int64_t packed = -1;
    for (int64_t task = all.tasks * ith / nth; task < all.tasks * (ith + 1) / nth; task++) {
        if (packed != task / all.groups) {
            packed = task / all.groups;
            pack_keys(at.keys, all.shared(all.k, task), all.k->nb[1], n, all.size);
            pack_values(at.values, all.shared(all.v, task), all.v->nb[1], n, all.size);
        }
        const int some = all.count(task);
        pack_queries(at.queries, all.query(task), all.q->nb[1], some, all.size, all.scale);
        score(at, keys, all.size);
        __m512 inverse[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            const __m512 total = weigh(at.weights + i * keys / 2 * LANES, at.scores + i * keys * LANES, n, keys);
            inverse[i] = _mm512_div_ps(_mm512_set1_ps(1), total);
        }
        add_values(at, inverse, all.result(task), some, keys, all.size, out->nb[2]);
    }
}

#else

const bool stretto_has_amx_attention = false;

extern "C" void stretto_attend_by_amx(ggml_tensor *, int, int, void *) { GGML_ABORT("compiled without AMX"); }

#endif
