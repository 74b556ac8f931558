"""What all dialects share: errors, events of streams, headers."""
