"""The self-test of a worker, and the numerics class that follows from it."""
