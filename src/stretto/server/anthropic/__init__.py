"""Anthropic's wire format: messages and token counting."""
