"""Receipts: signed records of answers, which `baton replay` and `baton receipt` read."""
