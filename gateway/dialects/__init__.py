"""The HTTP API: its endpoints in every dialect."""
