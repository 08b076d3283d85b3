"""A small model that sees: generated pictures, its training in torch, and its export to llama.cpp's files.

`python -m tools.eyes.train` trains it on generated pictures (minutes on one GPU), and
`python -m tools.eyes.export` writes the two GGUFs. Tests and benchmarks use `scenes` and `drawing` for
pictures whose right answers are known. Only `model` and `train` need torch, only `export` needs gguf.
"""
