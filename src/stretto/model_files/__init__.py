"""Model files: their contents, memory needs, whether they load, and where they are stored.

Nothing here runs a model in the caller's process: code that calls llama.cpp runs in a short-lived child.
Import the module you need (`stretto.model_files.gguf`, `kind`, `fit`, `probe`, `quantize`, `store`, `hub`).
"""
