"""Where draft tokens come from: lookup in known text, and a small model with the same vocabulary."""
