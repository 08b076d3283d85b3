"""The HTTP server: wire formats, who may call, and what operators see. Knows nothing of scheduling."""
