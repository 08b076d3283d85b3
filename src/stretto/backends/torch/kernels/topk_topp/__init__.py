"""Top-k and top-p: a search that leaves a few candidates, and the exact cut among them."""
