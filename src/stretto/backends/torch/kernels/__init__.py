"""Triton kernels behind `stretto.backends.torch.ops`; the contracts are there, and so are the references.

Importing a module here needs triton. No launcher reads device memory or makes a shape of it, so that every
call can be captured in a CUDA graph once it has been compiled by a first call.
"""
