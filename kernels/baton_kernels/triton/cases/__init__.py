"""Checks of every kernel over its table of shapes, against its reference. Tests run them in Triton's interpreter on a
CPU, and on a GPU.

Inputs are random, outputs and unused places are poisoned with NaN, and a disagreement raises AssertionError."""
