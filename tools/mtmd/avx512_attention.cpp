// Attention of towers for x86 processors with AVX-512 and without AMX. llama.cpp's takes several times as long.
//
// All in single precision, 48 queries at a time, 64 keys at a time. Scores are computed as keys times queries, so that a
// vector holds 16 queries: maxima and sums run from vector to vector, never across one. Scores and results are products of
// one form (`multiply`): 8 rows of three vectors in registers, for which keys and values are packed by eights. What a row
// gives depends on its query, the keys and the values, not on the rows beside it: blocks of keys begin at fixed ones.

#include "tower_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

#include "x86_kernels.h"

const bool stretto_has_avx512_attention = true;

namespace {

enum { EIGHT = 8, VECTORS = 3, QUERIES = VECTORS * LANES, KEYS = 64 };

struct Buffers {
    float * keys;     // [eights of keys][number][8]
    float * values;   // [eights of numbers][key][8]
    float * queries;  // [number][query]
    float * results;  // [number][query]
    float * weights;  // of a block of keys: [key][query]
};

Buffers allocate(int64_t keys, int64_t size) {
    const int64_t cache = up(keys, EIGHT) * up(size, EIGHT), task = up(size, EIGHT) * QUERIES;
    float * at = (float *) reserve((2 * cache + 2 * task + KEYS * QUERIES) * sizeof(float));
    return {at, at + cache, at + 2 * cache, at + 2 * cache + task, at + 2 * cache + 2 * task};
}

// 8 rows of `vectors` vectors: what is there times `kept` (nothing: zero), plus a[i][row] * b[i][...] for `n` i.
template <int vectors>
void multiply(float * to, const float * a, const float * b, int64_t n, const __m512 * kept) {
    __m512 sums[EIGHT][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < EIGHT; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            sums[i][j] = _mm512_setzero_ps();
            if (kept != nullptr) sums[i][j] = _mm512_mul_ps(_mm512_load_ps(to + i * QUERIES + j * LANES), kept[j]);
        }
    }
    for (int64_t k = 0; k < n; k++, a += EIGHT, b += QUERIES) {
        __m512 given[vectors];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) given[j] = _mm512_load_ps(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < EIGHT; i++) {
            const __m512 factor = _mm512_set1_ps(a[i]);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] = _mm512_fmadd_ps(factor, given[j], sums[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < EIGHT; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) _mm512_store_ps(to + i * QUERIES + j * LANES, sums[i][j]);
    }
}

inline __m256i eight_rows(size_t bytes) { return _mm512_castsi512_si256(stride((int) bytes)); }

void pack_keys(float * to, const char * from, size_t bytes, int64_t n, int64_t size) {
    const __m256i rows = eight_rows(bytes);
    for (int64_t key = 0; key < n; key += EIGHT, from += EIGHT * bytes) {
        const __m256 some = _mm256_castsi256_ps(_mm512_castsi512_si256(_mm512_maskz_set1_epi32(lanes(n - key), -1)));
        for (int64_t d = 0; d < size; d++, to += EIGHT) {
            const float * at = (const float *) from + d;
            _mm256_store_ps(to, _mm256_mask_i32gather_ps(_mm256_setzero_ps(), at, rows, some, 1));
        }
    }
}

void pack_values(float * to, const char * from, size_t bytes, int64_t n, int64_t size) {
    for (int64_t key = 0; key < n; key++, from += bytes, to += EIGHT) {
        for (int64_t d = 0; d < size; d += EIGHT) {
            const __mmask16 some = lanes(size - d) & 0xff;
            const __m512 eight = _mm512_maskz_loadu_ps(some, (const float *) from + d);
            _mm256_store_ps(to + d * n, _mm512_castps512_ps256(eight));
        }
    }
}

void pack_queries(float * to, const char * from, size_t bytes, int n, int64_t size, float scale) {
    for (int j = 0; j < QUERIES; j += LANES, from += LANES * bytes) {
        for (int64_t d = 0; d < size; d++) {
            const float * at = (const float *) from + d;
            const __m512 found = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes(n - j), stride((int) bytes), at, 1);
            _mm512_store_ps(to + d * QUERIES + j, _mm512_mul_ps(found, _mm512_set1_ps(scale)));
        }
    }
}

// Of 16 queries: the highest score so far, and the sum of the weights relative to it.
struct Row {
    __m512 most, total;
};

// Scores of 16 queries and `n` keys become weights. Returns what sums of the keys before are multiplied by.
__m512 weigh(float * scores, int n, Row * row, bool first) {
    __m512 most = first ? _mm512_load_ps(scores) : row->most, total = _mm512_setzero_ps();
    for (int key = 0; key < n; key++) most = _mm512_max_ps(most, _mm512_load_ps(scores + key * QUERIES));
    for (int key = 0; key < n; key++) {
        const __m512 weight = power_of_2(_mm512_sub_ps(_mm512_load_ps(scores + key * QUERIES), most));
        _mm512_store_ps(scores + key * QUERIES, weight);
        total = _mm512_add_ps(total, weight);
    }
    const __m512 kept = first ? _mm512_setzero_ps() : power_of_2(_mm512_sub_ps(row->most, most));
    row->total = first ? total : _mm512_fmadd_ps(row->total, kept, total);
    row->most = most;
    return kept;
}

// Results of up to 48 queries, not yet divided by their totals.
template <int vectors>
void attend(const Buffers & at, Row * rows, int64_t keys, int64_t size) {
    for (int64_t from = 0; from < keys; from += KEYS) {
        const int n = keys - from < KEYS ? (int) (keys - from) : (int) KEYS;
        for (int key = 0; key < n; key += EIGHT) {
            multiply<vectors>(at.weights + key * QUERIES, at.keys + (from + key) * size, at.queries, size, nullptr);
        }
        __m512 kept[vectors];
        for (int j = 0; j < vectors; j++) kept[j] = weigh(at.weights + j * LANES, n, rows + j, from == 0);
        for (int64_t d = 0; d < size; d += EIGHT) {
            const float * values = at.values + d * keys + from * EIGHT;
            multiply<vectors>(at.results + d * QUERIES, values, at.weights, n, from == 0 ? nullptr : kept);
        }
    }
}

void put(char * to, size_t bytes, const Buffers & at, const Row * rows, int n, int64_t size) {
    const __m512i each = stride((int) bytes);
    for (int j = 0; j < n; j += LANES, to += LANES * bytes, rows++) {
        const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), rows->total);
        for (int64_t d = 0; d < size; d++) {
            const __m512 found = _mm512_mul_ps(_mm512_load_ps(at.results + d * QUERIES + j), inverse);
            _mm512_mask_i32scatter_ps((float *) to + d, lanes(n - j), each, found, 1);
        }
    }
}

}  // namespace

extern "C" void stretto_attend_by_avx512(ggml_tensor * out, int ith, int nth, void * scale_bits) {
    const Attention all(out, QUERIES, scale_bits);
    const Buffers at = allocate(all.keys, all.size);
    int64_t packed = -1;
    for (int64_t task = all.tasks * ith / nth; task < all.tasks * (ith + 1) / nth; task++) {
        if (packed != task / all.groups) {
            packed = task / all.groups;
            pack_keys(at.keys, all.shared(all.k, task), all.k->nb[1], all.keys, all.size);
            pack_values(at.values, all.shared(all.v, task), all.v->nb[1], all.keys, all.size);
        }
        const int n = all.count(task);
        pack_queries(at.queries, all.query(task), all.q->nb[1], n, all.size, all.scale);
        Row rows[VECTORS];
        if (n <= LANES) attend<1>(at, rows, all.keys, all.size);
        else if (n <= 2 * LANES) attend<2>(at, rows, all.keys, all.size);
        else attend<3>(at, rows, all.keys, all.size);
        put(all.result(task), out->nb[2], at, rows, n, all.size);
    }
}

#else

const bool stretto_has_avx512_attention = false;

extern "C" void stretto_attend_by_avx512(ggml_tensor *, int, int, void *) { GGML_ABORT("compiled without AVX-512"); }

#endif
