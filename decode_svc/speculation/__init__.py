"""Speculation: which draft tokens a step verifies, where they come from, and how many are worth it."""
