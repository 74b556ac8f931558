"""Baton as a library: a model from Python, without a server (docs/python.md).

`LLM` and `AsyncLLM` open a model in this process, or start a mesh of processes. Both ask it over HTTP connections of
their own, so that a prompt gets the tokens that every other client gets."""
