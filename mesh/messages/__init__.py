"""The messages between processes: their types, their checks, their bytes."""
