"""Generators of fuzzed input for the scripts beside this folder."""
