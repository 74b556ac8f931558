"""Versions of baton.admin."""
