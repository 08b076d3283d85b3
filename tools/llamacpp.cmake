# Included by CMake after llama-cpp-python's project() call (-DCMAKE_PROJECT_llama_cpp_INCLUDE=this file).
#
# llama-cpp-python also builds llama.cpp's `common` library, which nothing that it installs links to, and `mtmd`
# (pictures and sounds): 104 of 178 source files. It forces the first into the cache and declares the second as an
# option; a normal variable has precedence over both (policies CMP0126 and CMP0077). The portable wheel holds mtmd
# (-DSTRETTO_MTMD=ON); elsewhere `tools/build_mtmd.py` builds what Stretto uses of it, so that wheels in pip's cache
# stay valid.
set(LLAMA_BUILD_COMMON OFF)
if(NOT STRETTO_MTMD)
  set(LLAVA_BUILD OFF)
endif()

# GCC 12 and 13 miscompile llama.cpp's AMX set-up without it. Empty where the compiler has no AMX.
string(APPEND CMAKE_CXX_FLAGS " -include '${CMAKE_CURRENT_LIST_DIR}/amx_tiles.h'")
