"""The families of models that are served: a table of what differs between them, and how their config.json is read."""
