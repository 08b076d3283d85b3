"""The claims of `benchmarks/compare.py`: what is measured, and the bars that it has to hold."""
