// Operations of towers, for ggml_custom_4d. Each file of kernels is compiled for the instructions in its name and may be
// called only where the processor has them (`processor.h`).

#pragma once

#include <cstdint>

#include "ggml.h"

// Whether the compiler knew the instructions.
extern const bool stretto_has_amx_attention, stretto_has_avx512_attention, stretto_has_avx512_gelu, stretto_has_vnni_products;

// Quantized activations are tiles of some rows: bytes of a tile's block of 32 numbers of each.
enum { STRETTO_TILE_ROWS = 6, STRETTO_TILE_BYTES = STRETTO_TILE_ROWS * 36 };

extern "C" {
// Attention without a mask of f32 queries, keys and values; `scale` is a float in the bits of the pointer.
void stretto_attend_by_amx(ggml_tensor * out, int ith, int nth, void * scale);
void stretto_attend_by_avx512(ggml_tensor * out, int ith, int nth, void * scale);
// GELU by tanh of contiguous floats.
void stretto_gelu_by_avx512(ggml_tensor * out, int ith, int nth, void * unused);
// Rows of floats as tiles of bytes, and their product with a Q8_0 matrix, plus a bias and other floats where there are
// any (the third and the fourth source); then GELU if `gelu` is not null.
void stretto_quantize_by_avx512(ggml_tensor * out, int ith, int nth, void * unused);
void stretto_multiply_by_vnni(ggml_tensor * out, int ith, int nth, void * gelu);
}

// GELU of a product of ours as part of it; nullptr: `sum` is something else (`tower_products.cpp`).
ggml_tensor * stretto_product_with_gelu(ggml_context * context, ggml_tensor * sum);
