"""The client side of a worker: streams, call batching, transport, supervision. Knows nothing about tokens."""
