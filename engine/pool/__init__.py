"""The pages of a pool, and who holds them."""
