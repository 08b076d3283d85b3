"""A tick's rows as llama_decode calls: which rows run together, padding and tile fill, and sampling."""
