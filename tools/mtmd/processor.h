// Which of our kernels for towers this processor can run, and this build has.

#pragma once

bool has_amx();
bool has_avx512();
bool has_vnni();
