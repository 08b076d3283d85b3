"""A tick's rows as llama_decode calls: which run together, how tiles are filled, and what comes out."""
