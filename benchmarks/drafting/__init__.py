"""Parts of `benchmarks/speculation.py`: prompts, users in a closed loop, exactness, and llama-server."""
