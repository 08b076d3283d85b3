"""What draft models of all backends have in common: texts, vocabulary, prices, and how they fail."""
