"""Spans, logs, measures and where they go."""
