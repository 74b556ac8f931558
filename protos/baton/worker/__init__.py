"""Versions of baton.worker."""
