"""The choice of workers for an attempt."""
