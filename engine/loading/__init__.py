"""A model is loaded, and its worker gets a runner."""
