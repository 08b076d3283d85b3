"""The wire format of Anthropic: messages and their tokens counted."""
