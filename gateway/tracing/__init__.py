"""Traces of requests: what each one notes on its way, and the tree of spans that follows from it."""
