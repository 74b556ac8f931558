"""The front door and the sequencer: validates, routes, streams out. Never computes."""
