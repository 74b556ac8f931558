"""Drafts, and which of them count."""
