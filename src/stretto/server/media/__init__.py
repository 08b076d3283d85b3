"""Pictures and sounds in requests: the same for all dialects."""
