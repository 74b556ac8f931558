"""Models: where they come from, and how they become smaller."""
