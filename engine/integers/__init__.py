"""Numbers of eight and four bits."""
