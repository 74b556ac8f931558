"""Makes the built-in pair: generates a corpus, trains a tokenizer, a model and its draft, and evaluates them.

Not shipped. `python -m models.train` writes the weights, `python -m models.evaluate --json` the model card."""
