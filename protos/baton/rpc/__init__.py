"""Versions of baton.rpc."""
