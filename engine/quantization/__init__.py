"""Eight and four bits: how weights become integers when a model is loaded or converted, and what that costs in quality."""
