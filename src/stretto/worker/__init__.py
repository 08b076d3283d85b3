"""What owns a loaded model: the loop that drives its ticks, and the output that turns tokens into text."""
