"""What operators see: histograms, traces and logs. Knows figures and names; never a prompt or an answer."""
