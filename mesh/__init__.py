"""What every service stands on: messages, sessions, the network handed in, configuration, errors, telemetry."""
