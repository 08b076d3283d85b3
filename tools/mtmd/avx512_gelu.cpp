// GELU of towers for x86 processors with AVX-512. llama.cpp looks it up in a table, a number at a time.

#include "tower_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

#include "x86_kernels.h"

const bool stretto_has_avx512_gelu = true;

extern "C" void stretto_gelu_by_avx512(ggml_tensor * out, int ith, int nth, void *) {
    const int64_t n = ggml_nelements(out), part = up((n + nth - 1) / nth, LANES), last = part * (ith + 1) < n ? part * (ith + 1) : n;
    const float * from = (const float *) out->src[0]->data;
    float * to = (float *) out->data;
    for (int64_t i = part * ith; i < last; i += LANES) {
        const __mmask16 some = lanes(last - i);
        _mm512_mask_storeu_ps(to + i, some, gelu(_mm512_maskz_loadu_ps(some, from + i)));
    }
}

#else

const bool stretto_has_avx512_gelu = false;

extern "C" void stretto_gelu_by_avx512(ggml_tensor *, int, int, void *) { GGML_ABORT("compiled without AVX-512"); }

#endif
