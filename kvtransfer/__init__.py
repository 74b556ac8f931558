"""Moves KV pages between two processes' pools. Knows memory and 32-byte tickets, never requests."""
