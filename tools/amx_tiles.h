// Included before every C++ file of llama.cpp (`llamacpp.cmake`): AMX intrinsics that say which memory they read.
//
// GCC 12.2 and 13.2 declare that `_tile_loadconfig` reads 8 of 64 bytes. llama.cpp's configuration is a local variable,
// so the stores to the rest of it are removed, and the first tile instruction ends the process (SIGILL; fixed in 12.4,
// 13.3 and 14). `_tile_loadd` declares no memory at all: stores to a tile's buffer may move behind it.

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define STRETTO_TEXT(number) #number

#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" : : "m"(*(const char(*)[64])(config)))

#undef _tile_loadd
#define _tile_loadd(tile, base, stride)                       \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" STRETTO_TEXT(tile) \
                   :                                          \
                   : "r"((const void *)(base)), "r"((long)(stride)) \
                   : "memory")
#endif
