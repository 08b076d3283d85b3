"""Conversion between text and tokens: templates, tokenizing, stop strings, reasoning, tool calls, grammars.

Knows nothing of slots, sockets or HTTP; the worker and the SDK call it. Import each module by its own name,
so that minijinja and llguidance are loaded only when used.
"""
