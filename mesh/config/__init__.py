"""Settings: read, checked, and derived from the host."""
