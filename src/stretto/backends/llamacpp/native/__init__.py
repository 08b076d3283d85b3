"""What touches C: the library, ggml, batches in numpy memory, the vocabulary, devices."""
