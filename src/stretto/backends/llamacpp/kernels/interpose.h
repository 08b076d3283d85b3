// Shared by the kernels. `build.py` compiles them, `interpose.py` loads them before llama.cpp.

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

extern int stretto_own;  // 0, the initial value: every call is passed on to the original
