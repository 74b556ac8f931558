"""Errors, events of streams and headers, which all dialects share."""
