"""What operators see: probes, metrics, counters, and the instrumented engine."""
