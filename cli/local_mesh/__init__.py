"""A mesh on this machine: its services, their supervisor, the commands that start it."""
