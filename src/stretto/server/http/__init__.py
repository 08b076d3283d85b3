"""HTTP itself: connections, bodies, limits, keys, and errors in their dialect's shape."""
