"""The engine that prefill and decode share: the model, its weights, the page pool, the prefix cache, plans, sampling
and the runner."""
