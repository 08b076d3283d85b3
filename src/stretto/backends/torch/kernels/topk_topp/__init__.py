"""Top-k and top-p: a search that narrows rows down to few candidates, then the exact bound among them."""
