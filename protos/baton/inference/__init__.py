"""Versions of baton.inference."""
