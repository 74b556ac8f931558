"""The decode tier: opens landings for prompts' pages, then emits tokens, one step at a time for all requests."""
