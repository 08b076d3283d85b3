"""What engine and runtime say to each other: messages and frames. Stands on nothing but errors."""
