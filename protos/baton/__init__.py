"""Baton's contracts as Python: generated stubs of the three versioned packages, and a small async client."""
