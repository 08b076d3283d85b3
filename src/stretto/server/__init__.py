"""The HTTP server: wire formats, access control, operations. Knows nothing about scheduling."""
