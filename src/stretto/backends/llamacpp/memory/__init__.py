"""KV memory of llama.cpp: operations on sequences, saved states in one arena, and NaN kept to its request."""
