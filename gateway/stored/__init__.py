"""Responses that the gateway keeps for its clients on disk: for a time, within a bound, each for its tenant alone."""
