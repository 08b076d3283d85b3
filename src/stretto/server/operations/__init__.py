"""Operations: probes, metrics, counters, access log, drain, and the instrumented client."""
