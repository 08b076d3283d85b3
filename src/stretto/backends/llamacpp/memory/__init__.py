"""KV memory of llama.cpp: operations on sequences, saved states in one arena, NaN isolation."""
