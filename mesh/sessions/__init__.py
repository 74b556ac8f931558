"""Sessions between a worker and its gateways."""
