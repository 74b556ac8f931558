"""The prefill tier: computes prompts and pushes their pages, layer by layer, into decode's landings."""
