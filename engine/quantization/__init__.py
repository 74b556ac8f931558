"""Eight and four bits: how weights become integers when a model is loaded."""
