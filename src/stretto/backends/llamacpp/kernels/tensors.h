// Copied layouts: ggml.h and ggml-cpu-impl.h of llama-cpp-python 0.3.36.

#pragma once

#include <stdbool.h>

#include "interpose.h"

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q5_0 = 6, Q8_0 = 8, Q4_K = 12, Q6_K = 14 };  // ggml's type numbers

typedef struct tensor {
  int type;
  void *buffer;
  int64_t ne[4];
  size_t nb[4];
  int op;
  int32_t op_params[16];
  int32_t flags;
  struct tensor *src[10];
  struct tensor *view_src;
  size_t view_offs;
  char *data;
} tensor;

typedef struct {
  int ith, nth;
  size_t wsize;
  void *wdata;
  void *threadpool;
  bool use_ref;
} params_t;

// `tile_attention.c`: whether it can compute this call, and this thread's share of it.
bool stretto_tiles_suit(const tensor *out);
void stretto_attend_tiles(const params_t *params, tensor *out);
