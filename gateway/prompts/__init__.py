"""The assets of each model, and prompts made with them."""
