"""The `baton` command: the only room that knows every service."""
