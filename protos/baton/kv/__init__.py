"""Versions of baton.kv."""
