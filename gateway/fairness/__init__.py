"""Turns on the event loop, and turns among clients."""
