"""The state of a request at decode, and what is expected of it."""
