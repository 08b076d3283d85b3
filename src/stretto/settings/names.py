"""Setting names of other programs, mapped to ours for hints."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

_SAME = {
    "n_seq_max": (
        "n_parallel parallel np max_num_seqs max_running_requests num_parallel nseq_max slots n_slots "
        "max_batch_size max_concurrent_predictions ollama_num_parallel"
    ),
    "context_window": (
        "ctx_size ctx max_model_len context_length num_ctx max_seq_len max_seq_length context_size "
        "max_context_length max_total_tokens c"
    ),
    "n_ctx": "kv_cache_tokens total_ctx n_ctx_total num_gpu_blocks_override",
    "n_batch": "batch_size nbatch max_num_batched_tokens b",
    "n_ubatch": "ubatch_size nubatch ub",
    "n_gpu_layers": "gpu_layers ngl n_gpu_layer ngpu_layers num_gpu gpu_offload",
    "n_threads": "threads nthreads num_thread num_threads t",
    "n_threads_batch": "threads_batch nthreads_batch tb",
    "cache_type_k": "kv_cache_dtype cache_type kv_cache_type ctk type_k",
    "cache_type_v": "ctv type_v",
    "flash_attention": "flash_attn fa enable_flash_attention",
    "cache": (
        "enable_prefix_caching prompt_cache cache_prompt cache_reuse disable_radix_cache prefix_caching "
        "cache_policy cache_mode"
    ),
    "prefill_chunk": (
        "enable_chunked_prefill chunked_prefill_size prefill_batch_size long_prefill_token_threshold "
        "chunk_size prefill_chunk_size"
    ),
    "cache_ram_bytes": "cache_ram swap_space cpu_offload_gb kv_offloading_size",
    "max_queue": "max_queued_requests ollama_max_queue max_queue_size",
    "max_queue_wait_s": "admission_timeout queue_timeout max_queue_wait",
    "path": "model model_path model_file file m",
    "speculation": "speculative_config spec_type lookup",
    "draft_model": "speculative_model model_draft md",
    "swa_full": "swa_full_cache",
    "chat_template": "chat_template_file template jinja_template",
    "use_mmap": "mmap no_mmap load_mode",
    "use_mlock": "mlock",
    "main_gpu": "mg",
    "tensor_split": "ts",
    "split_mode": "sm",
    "tensor_parallel": "tensor_parallel_size tp tp_size",
    "devices": "device dev",
    "override_tensors": "override_tensor ot",
    "n_cpu_moe": "ncmoe cpu_moe cmoe",
    "preemption": "preemption_mode",
    "backend": "engine",
}
FOREIGN = {foreign: ours for ours, names in _SAME.items() for foreign in names.split()}
# Variables of other programs, and ours for the same purpose.
FOREIGN_SWITCHES = {"KR_MLX_DISABLE_GENERATE_BATCHING": "STRETTO_DISABLE_GENERATE_BATCHING"}
# Settings without a counterpart here.
NO_COUNTERPART = {
    "gpu_memory_utilization": "memory follows from context_window and n_seq_max; see `stretto estimate`",
    "mem_fraction_static": "memory follows from context_window and n_seq_max; see `stretto estimate`",
    "batch_timeout": "requests join the running batch at the next tick, without waiting; omit the key",
    "cont_batching": "continuous batching is always on; omit the key",
    "continuous_batching": "continuous batching is always on; omit the key",
    "kv_unified": "set kv_layout: unified, and n_ctx for the size of its pool",
    "no_kv_offload": "set offload_kqv: false",
    "no_op_offload": "set op_offload: false",
    "enforce_eager": "there is no such switch; omit the key",
    "trust_remote_code": "Stretto never runs code from a model's repository; omit the key",
    "rope_scaling": "set rope_scaling_type, rope_freq_base and rope_freq_scale",
}


def hint_for(key: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """The hint for an unknown key. `spell`: how a known one is written where this one was found."""
    names = list(known)
    plain = key.strip().lstrip("-").replace("-", "_").lower()
    if plain in names:
        return f"write it {spell(plain)}"
    if plain in NO_COUNTERPART:
        return NO_COUNTERPART[plain]
    if FOREIGN.get(plain) in names:
        return f"here it is called {spell(FOREIGN[plain])}"
    squeezed = plain.replace("_", "")
    for name in names:
        if name.replace("_", "") == squeezed:
            return f"write it {spell(name)}"
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    return f"did you mean {spell(near[0])}?" if near else f"known keys: {', '.join(sorted(names))}"
