"""Our own kernels for ARM and x86 processors, which replace llama.cpp's: faster, and batch-invariant."""
