"""What an operator sees of the mesh: metrics for the whole mesh, served at the gateway."""
