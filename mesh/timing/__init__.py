"""Clocks and pauses of an event loop."""
