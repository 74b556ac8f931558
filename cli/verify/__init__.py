"""`baton verify`: the mesh's tokens and logprob bits against those of the engine alone."""
