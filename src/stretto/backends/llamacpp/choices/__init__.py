"""What `auto` means on this machine for this model: decided by timing real passes, and remembered on disk."""
