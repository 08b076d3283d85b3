// Gives the towers of libmtmd products of our own for Q8_0 matrices that stay in plain buffers.
//
// As in `tower_kernels.cpp`: linked with --wrap for the functions with which towers describe their graphs. A product
// becomes two operations: its activations are quantized once, for all products that have them in common (those of
// queries, keys and values), and then multiplied. What follows a product becomes part of it: its bias, GELU, and the
// residual stream. That makes a new node; the product without them is computed only if something else needs it.

#include <cstring>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "processor.h"
#include "tower_kernels.h"

extern "C" {
extern int stretto_packs;  // `packed_weights.cpp`

ggml_tensor * __real_ggml_mul_mat(ggml_context * context, ggml_tensor * matrix, ggml_tensor * given);
ggml_tensor * __real_ggml_add(ggml_context * context, ggml_tensor * a, ggml_tensor * b);
}

namespace {

const int64_t ROWS_MIN = 32;  // for fewer llama.cpp's is faster: ours packs the matrix each time
const int64_t BLOCK = 32;

bool suits(const ggml_tensor * matrix, const ggml_tensor * given) {
    const bool leaf = matrix->op == GGML_OP_NONE && matrix->view_src == nullptr && matrix->buffer != nullptr;
    if (!stretto_packs || !leaf || matrix->type != GGML_TYPE_Q8_0 || given->type != GGML_TYPE_F32) {
        return false;
    }
    const bool plain = ggml_backend_buffer_get_type(matrix->buffer) == ggml_backend_cpu_buffer_type();
    const bool shape = ggml_is_matrix(matrix) && ggml_is_contiguous(matrix) && matrix->ne[0] == given->ne[0];
    return plain && shape && given->nb[0] == sizeof(float) && ggml_nrows(given) >= ROWS_MIN && has_vnni();
}

// What ggml_custom_4d keeps with a node.
struct Custom {
    ggml_custom_op_t function;
    int tasks;
    void * data;
};

Custom custom(const ggml_tensor * node) {
    Custom found = {};
    if (node->op == GGML_OP_CUSTOM) {
        std::memcpy(&found, node->op_params, sizeof(found));
    }
    return found;
}

// Activations as tiles of bytes. They are looked for among the tensors made since: nothing is remembered that could
// belong to an earlier graph.
ggml_tensor * quantized(ggml_context * context, ggml_tensor * given) {
    for (ggml_tensor * node = given; node != nullptr; node = ggml_get_next_tensor(context, node)) {
        if (custom(node).function == stretto_quantize_by_avx512 && node->src[0] == given) {
            return node;
        }
    }
    const int64_t tiles = (ggml_nrows(given) + STRETTO_TILE_ROWS - 1) / STRETTO_TILE_ROWS;
    return ggml_custom_4d(context, GGML_TYPE_I8, given->ne[0] / BLOCK * STRETTO_TILE_BYTES, tiles, 1, 1, &given, 1,
                          stretto_quantize_by_avx512, GGML_N_TASKS_MAX, nullptr);
}

// Operands of our products: quantized activations, a matrix and, or nullptr, a bias and what else is added.
enum { BIAS = 2, ADDED = 3, OPERANDS = 4 };

bool is_product(const ggml_tensor * node) { return custom(node).function == stretto_multiply_by_vnni; }

bool is_only_sum(const ggml_tensor * product) {
    return is_product(product) && custom(product).data == nullptr && product->src[ADDED] == nullptr;
}

ggml_tensor * product(ggml_context * context, const int64_t * shape, ggml_tensor ** operands, bool has_gelu) {
    return ggml_custom_4d(context, GGML_TYPE_F32, shape[0], shape[1], shape[2], shape[3], operands, OPERANDS,
                          stretto_multiply_by_vnni, GGML_N_TASKS_MAX, has_gelu ? (void *) 1 : nullptr);
}

// The product plus this; nullptr: it cannot be part of it.
ggml_tensor * product_plus(ggml_context * context, ggml_tensor * sum, ggml_tensor * added) {
    if (!is_only_sum(sum) || added->type != GGML_TYPE_F32 || !ggml_is_contiguous(added)) {
        return nullptr;
    }
    ggml_tensor * operands[OPERANDS];
    std::memcpy(operands, sum->src, sizeof(operands));
    const bool bias = ggml_nrows(added) == 1 && added->ne[0] == sum->ne[0];
    if (bias && operands[BIAS] == nullptr) {
        operands[BIAS] = added;
    } else if (ggml_are_same_shape(sum, added)) {
        operands[ADDED] = added;
    } else {
        return nullptr;
    }
    return product(context, sum->ne, operands, false);
}

}  // namespace

ggml_tensor * stretto_product_with_gelu(ggml_context * context, ggml_tensor * sum) {
    return is_only_sum(sum) ? product(context, sum->ne, sum->src, true) : nullptr;
}

#define EXPORTED __attribute__((visibility("default")))  // for tests

extern "C" {

EXPORTED bool stretto_has_products() { return has_vnni(); }

EXPORTED ggml_tensor * __wrap_ggml_mul_mat(ggml_context * context, ggml_tensor * matrix, ggml_tensor * given) {
    if (!suits(matrix, given)) {
        return __real_ggml_mul_mat(context, matrix, given);
    }
    const int64_t shape[] = {matrix->ne[1], given->ne[1], given->ne[2], given->ne[3]};
    ggml_tensor * operands[OPERANDS] = {quantized(context, given), matrix, nullptr, nullptr};
    return product(context, shape, operands, false);
}

EXPORTED ggml_tensor * __wrap_ggml_add(ggml_context * context, ggml_tensor * a, ggml_tensor * b) {
    ggml_tensor * found = product_plus(context, a, b);
    if (found == nullptr && ggml_are_same_shape(a, b)) {
        found = product_plus(context, b, a);
    }
    return found != nullptr ? found : __real_ggml_add(context, a, b);
}
}
