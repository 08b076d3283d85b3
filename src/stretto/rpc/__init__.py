"""What client and worker say to each other: messages and frames. Stands on nothing but errors."""
