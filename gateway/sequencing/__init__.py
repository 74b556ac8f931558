"""Requests and their attempts: the only sequencer of each request, and what ends, delays or repeats an attempt."""
