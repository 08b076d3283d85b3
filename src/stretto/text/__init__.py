"""Text in, tokens out, and back: templates, tokenizing, stop strings, reasoning, tool calls, grammars.

Knows characters and what they mean. Does not know slots, sockets or HTTP; the runtime and the SDK call it.
Every module is imported by its own name, so that what needs minijinja or llguidance loads only when used.
"""
