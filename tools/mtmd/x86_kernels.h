// What our kernels for x86 share: vectors of 16 floats, and which part of an attention a thread has. Included only by
// files that are compiled for AVX-512. Everything is internal to the file that includes it, and nothing is a template of
// the standard library: the linker could choose such a file's copy for others, which run anywhere.

#pragma once

#include "tower_kernels.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { LANES = 16 };
const float LOG2_E = 1.44269504f;

struct Memory {
    void * data = nullptr;
    size_t bytes = 0;
    ~Memory() { free(data); }
};

thread_local Memory memory;

inline int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// At least this much memory of the thread, in whole cache lines. What was in it may be lost.
inline char * reserve(size_t bytes) {
    if (memory.bytes < bytes) {
        free(memory.data);
        memory.data = aligned_alloc(64, up(bytes, 64));
        memory.bytes = memory.data != nullptr ? bytes : 0;
        if (memory.data == nullptr) GGML_ABORT("no memory for a tower's kernels");
    }
    return (char *) memory.data;
}

inline __mmask16 lanes(int64_t n) { return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16) ((1u << n) - 1); }

inline __m512i stride(int n) {
    const __m512i ones = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_mullo_epi32(ones, _mm512_set1_epi32(n));
}

// 2 to the x, for x of at most 0, to 4e-6.
inline __m512 power_of_2(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, whole);
    __m512 sum = _mm512_set1_ps(0.00966637f);
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.05592198f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.24022349f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.69312105f));
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1));
    return _mm512_scalef_ps(sum, whole);
}

// GELU by tanh.
inline __m512 gelu(__m512 x) {
    const __m512 cubic = _mm512_set1_ps(0.044715f), factor = _mm512_set1_ps(2 * 0.79788456f * LOG2_E), one = _mm512_set1_ps(1);
    const __m512 inner = _mm512_mul_ps(x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), cubic, one));  // tanh(u) by exp(-2|u|)
    const __m512 small = power_of_2(_mm512_mul_ps(_mm512_abs_ps(inner), _mm512_sub_ps(_mm512_setzero_ps(), factor)));
    const __m512 share = _mm512_div_ps(one, _mm512_add_ps(one, small));  // of x, if positive
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_mul_ps(share, negative, share, small));
}

// An attention whose work is divided into tasks: some queries of one head each.
struct Attention {
    const ggml_tensor * out, * q, * k, * v;
    int64_t size, keys, groups, tasks;
    int queries;  // of a task; the last of a head may have fewer
    float scale;  // of scores in powers of 2

    Attention(const ggml_tensor * node, int queries, void * scale_bits)
        : out(node), q(node->src[0]), k(node->src[1]), v(node->src[2]), size(q->ne[0]), keys(k->ne[1]),
          groups((q->ne[1] + queries - 1) / queries), tasks(groups * q->ne[2] * q->ne[3]), queries(queries) {
        const uintptr_t bits = (uintptr_t) scale_bits;
        memcpy(&scale, &bits, sizeof(scale));
        scale *= LOG2_E;
    }
    int64_t head(int64_t task) const { return task / groups % q->ne[2]; }
    int64_t sequence(int64_t task) const { return task / groups / q->ne[2]; }
    int64_t row(int64_t task) const { return task % groups * queries; }
    int count(int64_t task) const { return (int) (q->ne[1] - row(task) < queries ? q->ne[1] - row(task) : queries); }
    const char * shared(const ggml_tensor * of, int64_t task) const {  // keys or values
        const int64_t heads = q->ne[2] / of->ne[2], sequences = q->ne[3] / of->ne[3];
        return (const char *) of->data + head(task) / heads * of->nb[2] + sequence(task) / sequences * of->nb[3];
    }
    const char * query(int64_t task) const {
        return (const char *) q->data + row(task) * q->nb[1] + head(task) * q->nb[2] + sequence(task) * q->nb[3];
    }
    char * result(int64_t task) const {
        return (char *) out->data + head(task) * out->nb[1] + row(task) * out->nb[2] + sequence(task) * out->nb[3];
    }
};

}  // namespace
