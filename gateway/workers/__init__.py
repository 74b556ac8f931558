"""The attached workers: what they report, what follows from it, and whom they fit."""
