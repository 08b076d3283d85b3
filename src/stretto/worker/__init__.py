"""The worker process: owns loaded models, drives their ticks, turns tokens into text, serves RPC calls."""
