"""Numbers that were tuned on a machine, each with the machine and what was measured. The only place for them.

x86: two cores of an AVX-512 server, SmolLM2-135M in Q4_0. ARM: two cores of a Neoverse-N1, the same model.
Limits that llama.cpp itself sets are not here but where they are used.
"""

from __future__ import annotations

# Attention (docs/design/attention-on-cpus.md)
SCORES_BYTES_MAX = 256 << 20  # attention scores of one pass without flash attention; larger passes are split
ROW_ATTENTION_UBATCH_MAX = 56  # ARM: a multiple of four that stays below a tile of 64 rows
ROW_ATTENTION_WINDOW_MAX = 4096  # ARM, llama.cpp's kernel: faster up to 700 tokens, a tenth slower at 2,000

# The side context for long prompts
SIDE_CONTEXT_WINDOW_MIN = 2048  # in smaller windows no prompt gains enough to pay for a second context
SIDE_CONTEXT_CACHE_BYTES_MAX = 512 << 20  # of its KV cache, one more slot
SIDE_CONTEXT_PROMPT_MIN = 1024  # x86: handing over a shorter prompt costs more than it gains
SIDE_CONTEXT_ROWS_MIN = 16  # of a chunk; fewer are not worth pausing a pass for
SIDE_CONTEXT_ROWS_PER_LAYER = 32  # at most: a chunk is at least one layer of a pass
SIDE_CONTEXT_RECOMPUTED_MAX = 64  # cached tokens that are recomputed there; a template that all prompts share
MEDIA_ROWS_PER_LAYER = 4  # of a picture's pass: a stream waits for a layer or two
SIDE_CONTEXT_IDLE_TICKS = 8  # ticks without rows after which the prompt makes room for another

# Rows of a prompt chunk: a multiple of the first, efficient from the second on
CHUNK_MULTIPLE_CPU = 16  # x86: fewer rows cost nearly as much
CHUNK_EFFICIENT_CPU = 64
CHUNK_MULTIPLE_SIDE_CONTEXT = 32  # about two layers of a pass of 512 rows
CHUNK_EFFICIENT_SIDE_CONTEXT = 64  # more rows save decode passes, fewer shorten the gaps between tokens
CHUNK_MULTIPLE_ROW_ATTENTION = (
    14  # ARM: a quarter of a pass; with a third, prompts of 38 rows were often split
)
CHUNK_EFFICIENT_ROW_ATTENTION = ROW_ATTENTION_UBATCH_MAX
TILES_SAVED_SHARE = 0.2  # two tiles are efficient where they save this share of what two single ones cost

# Memory
STATE_BUFFER_BYTES_MAX = 64 << 20  # kept between copies: the first touch of fresh memory costs most
ARENA_PIECE_BYTES = 64 << 20
ARENA_SLACK = 1.25  # first-fit leaves gaps
ROWS_TOGETHER = 4  # matrix kernels take rows in fours: fewer take as long
