// Gives the towers of libmtmd the packed matrix kernels that llama.cpp gives its language models.
//
// llama.cpp places a language model's quantized matrices in a buffer that interleaves their rows, for which
// the CPU backend has kernels that are several times faster. libmtmd places all weights in plain buffers.
// This file is linked into libmtmd with --wrap for the three functions below: the matrices of a tower's blocks
// and of the projection go to a packed buffer, all else stays where it was. Only ggml's public headers are used.

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

extern "C" {
ggml_backend_buffer_t __real_ggml_backend_alloc_ctx_tensors_from_buft(ggml_context * context, ggml_backend_buffer_type_t type);
void __real_ggml_backend_buffer_free(ggml_backend_buffer_t buffer);
bool __real_ggml_backend_buft_is_host(ggml_backend_buffer_type_t type);

// 0: all weights stay plain. Set before a projector is loaded.
__attribute__((visibility("default"))) extern int stretto_packs;
int stretto_packs = 1;
}

namespace {

const char * const MATRICES[] = {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_out", "ffn_up", "ffn_gate", "ffn_down"};
const int64_t ROWS = 256;  // of a product that is asked about; any number that is no special case

std::mutex lock;
std::map<ggml_backend_buffer_t, ggml_backend_buffer_t> packed;  // by the buffer of the other weights

const char * after(const char * text, const char * prefix) {
    const size_t length = std::strlen(prefix);
    return std::strncmp(text, prefix, length) == 0 ? text + length : nullptr;
}

// What follows "12." in "12.weight"; nullptr where there is no number.
const char * after_number(const char * text) {
    const size_t digits = std::strspn(text, "0123456789");
    return digits > 0 && text[digits] == '.' ? text + digits + 1 : nullptr;
}

// Whether graphs use this tensor only as the matrix of a product: "v.blk.3.ffn_up.weight", "mm.2.weight",
// "mm.model.mlp.1.weight". Others are also transposed, looked up or convolved.
bool is_matrix(const ggml_tensor * tensor) {
    if (ggml_n_dims(tensor) != 2) {
        return false;
    }
    const char * projection = after(tensor->name, "mm.");
    if (projection != nullptr) {
        const char * layers = after(projection, "model.mlp.");
        projection = layers != nullptr ? layers : projection;
        const char * kind = after_number(projection);
        return kind != nullptr && std::strcmp(kind, "weight") == 0;
    }
    const char * block = std::strstr(tensor->name, ".blk.");
    const char * name = block != nullptr ? after_number(block + std::strlen(".blk.")) : nullptr;
    for (const char * matrix : MATRICES) {
        const char * kind = name != nullptr ? after(name, matrix) : nullptr;
        if (kind != nullptr && std::strcmp(kind, ".weight") == 0) {
            return true;
        }
    }
    return false;
}

// Buffer types with packed kernels that this processor has, the best first (AMX, CPU_REPACK).
std::vector<ggml_backend_buffer_type_t> packed_types(ggml_backend_dev_t device) {
    typedef ggml_backend_buffer_type_t * (*extra_types_t)(ggml_backend_dev_t);
    auto extra_types = (extra_types_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    std::vector<ggml_backend_buffer_type_t> found;
    if (extra_types == nullptr) {
        return found;
    }
    for (ggml_backend_buffer_type_t * type = extra_types(device); type != nullptr && *type != nullptr; ++type) {
        const char * name = ggml_backend_buft_name(*type);
        if (std::strcmp(name, "AMX") == 0 || std::strcmp(name, "CPU_REPACK") == 0) {
            found.push_back(*type);
        }
    }
    return found;
}

// Whether this processor has packed kernels for the tensor. `probe` is an empty buffer of the packed type.
bool has_kernel(ggml_backend_dev_t device, ggml_backend_buffer_t probe, const ggml_tensor * tensor) {
    ggml_init_params params = {ggml_tensor_overhead() * 4, nullptr, true};
    ggml_context * context = ggml_init(params);
    if (context == nullptr) {
        return false;
    }
    ggml_tensor * matrix = ggml_new_tensor_2d(context, tensor->type, tensor->ne[0], tensor->ne[1]);
    ggml_tensor * rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, tensor->ne[0], ROWS);
    matrix->buffer = probe;
    const bool supported = ggml_backend_dev_supports_op(device, ggml_mul_mat(context, matrix, rows));
    ggml_free(context);
    return supported;
}

// A buffer of this type with the matrices of this context that have kernels there; nullptr: there are none.
ggml_backend_buffer_t allocate_packed(ggml_context * context, ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_t probe = ggml_backend_buft_alloc_buffer(type, 0);
    if (probe == nullptr) {
        return nullptr;
    }
    const size_t alignment = ggml_backend_buft_get_alignment(type);
    std::vector<ggml_tensor *> chosen;
    std::vector<size_t> offsets;
    size_t bytes = 0;
    for (ggml_tensor * tensor = ggml_get_first_tensor(context); tensor != nullptr;
         tensor = ggml_get_next_tensor(context, tensor)) {
        if (tensor->data == nullptr && ggml_is_quantized(tensor->type) && is_matrix(tensor) && has_kernel(device, probe, tensor)) {
            chosen.push_back(tensor);
            offsets.push_back(bytes);
            bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
        }
    }
    __real_ggml_backend_buffer_free(probe);
    ggml_backend_buffer_t buffer = chosen.empty() ? nullptr : ggml_backend_buft_alloc_buffer(type, bytes);
    if (buffer == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    char * base = (char *) ggml_backend_buffer_get_base(buffer);
    for (size_t i = 0; i < chosen.size(); ++i) {
        ggml_backend_tensor_alloc(buffer, chosen[i], base + offsets[i]);
    }
    return buffer;
}

// A packed buffer of the best type that has kernels for any matrix of this context; nullptr: there is none.
ggml_backend_buffer_t allocate_packed(ggml_context * context) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == nullptr) {
        return nullptr;
    }
    for (ggml_backend_buffer_type_t type : packed_types(device)) {
        ggml_backend_buffer_t buffer = allocate_packed(context, device, type);
        if (buffer != nullptr) {
            return buffer;
        }
    }
    return nullptr;
}

}  // namespace

extern "C" {

ggml_backend_buffer_t __wrap_ggml_backend_alloc_ctx_tensors_from_buft(ggml_context * context, ggml_backend_buffer_type_t type) {
    const bool packs = stretto_packs && type == ggml_backend_cpu_buffer_type();
    ggml_backend_buffer_t own = packs ? allocate_packed(context) : nullptr;
    ggml_backend_buffer_t rest = __real_ggml_backend_alloc_ctx_tensors_from_buft(context, type);
    if (own != nullptr && rest == nullptr) {
        __real_ggml_backend_buffer_free(own);
    } else if (own != nullptr) {
        std::lock_guard<std::mutex> guard(lock);
        packed[rest] = own;
    }
    return rest;
}

void __wrap_ggml_backend_buffer_free(ggml_backend_buffer_t buffer) {
    ggml_backend_buffer_t own = nullptr;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = packed.find(buffer);
        if (found != packed.end()) {
            own = found->second;
            packed.erase(found);
        }
    }
    if (own != nullptr) {
        __real_ggml_backend_buffer_free(own);
    }
    __real_ggml_backend_buffer_free(buffer);
}

// No: weights are then set by ggml_backend_tensor_set, which packs those that are to be packed. A file read into
// the memory of a packed tensor would not be.
bool __wrap_ggml_backend_buft_is_host(ggml_backend_buffer_type_t) {
    return false;
}
}
