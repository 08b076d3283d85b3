"""Load for any OpenAI-compatible server, and what came of it.

Knows HTTP from the client's side, workloads, traces, figures and plots. Knows nothing of our own engine: ours
and a peer are measured by the same code, through the same socket. The clients run in processes of their own,
so that they disturb what they measure as little as possible.
"""
