// What the kernels share. `interpose.py` compiles them and puts them in the place of llama.cpp's.

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

extern int stretto_own;  // 0, as at first: every call goes on to the original
