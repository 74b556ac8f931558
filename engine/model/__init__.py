"""The model that the engine computes: its configuration, checkpoint, packed weights and the pass over its layers."""
