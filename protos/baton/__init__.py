"""Baton's contracts as Python: generated stubs of the versioned packages, and a small async client."""
