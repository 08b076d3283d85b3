// Gives the towers of libmtmd kernels of their own where llama.cpp's take most of an encoder's time.
//
// This file is linked into libmtmd with --wrap for the functions below, with which towers describe their graphs. Where
// one of our kernels suits, the node becomes an operation of ours (ggml_custom_4d), otherwise it stays llama.cpp's.
// Language models do not come through here. Only ggml's public headers are used.

#include "tower_kernels.h"

#include <cstring>

#include "processor.h"

extern "C" {
extern int stretto_packs;  // `packed_weights.cpp`

ggml_tensor * __real_ggml_flash_attn_ext(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                         ggml_tensor * mask, float scale, float max_bias, float logit_softcap);
void __real_ggml_flash_attn_ext_add_sinks(ggml_tensor * attention, ggml_tensor * sinks);
ggml_tensor * __real_ggml_gelu(ggml_context * context, ggml_tensor * given);
}

namespace {

// What a tower cast to half precision for llama.cpp's kernel, as it was.
ggml_tensor * before_cast(ggml_tensor * tensor) {
    ggml_tensor * source = tensor->op == GGML_OP_CPY ? tensor->src[0] : nullptr;
    return source != nullptr && source->type == GGML_TYPE_F32 ? source : tensor;
}

bool dense_floats(const ggml_tensor * tensor) {
    return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float);
}

// The last attention that became ours, and what it would have been.
thread_local ggml_tensor * ours = nullptr;
thread_local ggml_tensor * theirs = nullptr;

}  // namespace

#define EXPORTED __attribute__((visibility("default")))  // for tests

extern "C" {

EXPORTED const char * stretto_attention() { return has_amx() ? "amx" : has_avx512() ? "avx512" : "none"; }

EXPORTED ggml_tensor * __wrap_ggml_flash_attn_ext(ggml_context * context, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                         ggml_tensor * mask, float scale, float max_bias, float logit_softcap) {
    ggml_tensor * node = __real_ggml_flash_attn_ext(context, q, k, v, mask, scale, max_bias, logit_softcap);
    ggml_tensor * args[] = {q, before_cast(k), before_cast(v)};
    ggml_custom_op_t attend = has_amx() ? stretto_attend_by_amx : has_avx512() ? stretto_attend_by_avx512 : nullptr;
    const bool plain = mask == nullptr && max_bias == 0 && logit_softcap == 0 && q->ne[0] == v->ne[0];
    const bool dense = dense_floats(args[0]) && dense_floats(args[1]) && dense_floats(args[2]);
    if (!stretto_packs || attend == nullptr || !plain || !dense) {
        return node;
    }
    uintptr_t bits = 0;
    std::memcpy(&bits, &scale, sizeof(scale));
    theirs = node;
    ours = ggml_custom_4d(context, GGML_TYPE_F32, node->ne[0], node->ne[1], node->ne[2], node->ne[3], args, 3,
                          attend, GGML_N_TASKS_MAX, (void *) bits);
    return ours;
}

// With sinks the node is llama.cpp's again.
void __wrap_ggml_flash_attn_ext_add_sinks(ggml_tensor * attention, ggml_tensor * sinks) {
    if (sinks != nullptr && attention == ours) {
        *attention = *theirs;
    }
    __real_ggml_flash_attn_ext_add_sinks(attention, sinks);
}

EXPORTED ggml_tensor * __wrap_ggml_gelu(ggml_context * context, ggml_tensor * given) {
    if (!stretto_packs || !has_avx512() || given->type != GGML_TYPE_F32 || !ggml_is_contiguous(given)) {
        return __real_ggml_gelu(context, given);
    }
    ggml_tensor * product = stretto_product_with_gelu(context, given);
    if (product != nullptr) {
        return product;
    }
    return ggml_custom_4d(context, GGML_TYPE_F32, given->ne[0], given->ne[1], given->ne[2], given->ne[3], &given, 1,
                          stretto_gelu_by_avx512, GGML_N_TASKS_MAX, nullptr);
}
}
