"""Reads an answer as its client does. The gateway signs what it reads here, and `baton receipt` compares it."""
