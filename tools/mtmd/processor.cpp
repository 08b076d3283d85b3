// Asks the processor for the instructions of our kernels, and the system for their use.

#include "processor.h"

#include "tower_kernels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

const int TILE_DATA_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl: asks for the use of AMX in this process

// GCC's checks include that the system keeps these registers.
bool ask_for_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
}

bool ask_for_amx() {
    unsigned a, b, c, d, e = 0;
    const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && __get_cpuid_count(7, 1, &e, &b, &c, &a);
    const unsigned tiles = 1u << 24, products = 1u << 22, bf16 = 1u << 5;
    if (!known || !(d & tiles) || !(d & products) || !(e & bf16) || !ask_for_avx512()) {
        return false;
    }
    return syscall(SYS_arch_prctl, TILE_DATA_PERMISSION, TILE_DATA) == 0;
}

}  // namespace

bool has_amx() {
    static const bool found = stretto_has_amx_attention && ask_for_amx();
    return found;
}

bool has_avx512() {
    static const bool found = stretto_has_avx512_attention && stretto_has_avx512_gelu && ask_for_avx512();
    return found;
}

bool has_vnni() {
    static const bool found = stretto_has_vnni_products && ask_for_avx512() && __builtin_cpu_supports("avx512vnni");
    return found;
}
#else
bool has_amx() { return false; }
bool has_avx512() { return false; }
bool has_vnni() { return false; }
#endif
