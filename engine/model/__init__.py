"""What the engine computes: a model's configuration, checkpoint, packed weights and the pass over its layers."""
