"""Generators of fuzzed input."""
