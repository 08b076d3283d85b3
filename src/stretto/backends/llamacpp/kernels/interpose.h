// Shared by the kernels. `build.py` compiles them, `interpose.py` loads them before llama.cpp.

#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

extern int stretto_own;  // 0, the initial value: every call is passed on to the original
