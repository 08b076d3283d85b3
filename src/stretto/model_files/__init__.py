"""Model files: what is in them, how much memory they need, whether they load, and where they live.

Nothing here runs a model in the caller's process: whatever touches llama.cpp runs in a short-lived child.
Import the module you need (`stretto.model_files.gguf`, `kind`, `fit`, `probe`, `quantize`, `store`, `hub`).
"""
