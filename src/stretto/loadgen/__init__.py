"""Load generator for any OpenAI-compatible server, with statistics and plots.

Knows HTTP from the client's side, workloads, traces, statistics and plots, and nothing about Stretto's
internals: Stretto and its peers are measured by the same code over the same kind of socket. Clients run in
separate processes, so that they disturb the measurement as little as possible.
"""
