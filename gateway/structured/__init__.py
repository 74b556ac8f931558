"""Structured output: what clients demand of an answer's form becomes a grammar, and is checked before a token is
spent."""
