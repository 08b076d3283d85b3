"""Kernels of our own for ARM processors, in llama.cpp's place: faster, and the same to the last bit."""
