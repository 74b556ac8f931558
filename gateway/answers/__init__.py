"""Tokens become text, tool calls, events and usage."""
