"""Our own kernels for ARM processors, which replace llama.cpp's: faster, with the same bits."""
