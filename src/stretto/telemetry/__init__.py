"""Histograms, traces and logs for operators. They never contain prompts or answers."""
