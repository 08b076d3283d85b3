"""Tensor parallelism: one model over several processes, each with a part of every layer.

Rank 0 is the process that owns the backend: it schedules, embeds, samples. The others (`torch.follower`) get
the columns of every pass through a pipe (`followers`, `messages`), run their part of the layers, and meet in
sums (`group`). `shard` says which rank holds which part of a tensor.
"""
