"""Triton kernels behind `stretto.backends.torch.ops`, which has the contracts and the references.

Importing a module here needs triton. No launcher reads device memory or derives shapes from it, so every call
can be captured in a CUDA graph once a first call has compiled it.
"""
