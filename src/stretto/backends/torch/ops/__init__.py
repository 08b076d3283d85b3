"""The operators of the torch backend: plain torch on the CPU, Triton kernels on CUDA, one contract.

Each file has one operator: its contract, the choice of implementation, and the reference, which runs on the
CPU and is the oracle for the kernels. Nothing here synchronizes with the device on the CUDA path.
"""

from stretto.backends.torch.ops.activation import gelu_mul, silu_mul
from stretto.backends.torch.ops.attention import paged_attention, rotary_attention
from stretto.backends.torch.ops.decode_work import decode_work
from stretto.backends.torch.ops.experts import moe_experts
from stretto.backends.torch.ops.fp8 import FP8, Fp8Matrix, KvScales
from stretto.backends.torch.ops.linear import Weight, linear, linear_add, norm_gated, norm_linear
from stretto.backends.torch.ops.norm import add_rms_norm, rms_norm
from stretto.backends.torch.ops.rotary import rotary_write
from stretto.backends.torch.ops.sampling import SampledTokens, count_tokens, sample
from stretto.backends.torch.sampling_table import SamplingMode, SamplingTable
from stretto.backends.torch.work_list import DecodeWork

__all__ = [
    "FP8",
    "DecodeWork",
    "Fp8Matrix",
    "KvScales",
    "SampledTokens",
    "SamplingMode",
    "SamplingTable",
    "Weight",
    "add_rms_norm",
    "count_tokens",
    "decode_work",
    "gelu_mul",
    "linear",
    "linear_add",
    "moe_experts",
    "norm_gated",
    "norm_linear",
    "paged_attention",
    "rms_norm",
    "rotary_attention",
    "rotary_write",
    "sample",
    "silu_mul",
]
