"""Checks of requests that both front doors share."""
