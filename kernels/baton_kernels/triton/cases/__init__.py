"""Every kernel over its table of shapes, against its reference: what the interpreter runs on a CPU and a GPU for real.

Inputs are random, outputs and unused places are poisoned with NaN, and what disagrees raises AssertionError."""
