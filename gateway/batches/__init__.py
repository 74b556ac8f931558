"""Batches of requests, for `baton batch run` and `/v1/batches`: lines of a file become outcomes, each once."""
