"""`baton doctor`: what this machine can do."""
