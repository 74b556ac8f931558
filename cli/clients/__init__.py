"""Commands that ask a mesh for answers."""
