"""Where draft tokens come from: lookup in known text."""
