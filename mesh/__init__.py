"""The base of every service: messages, sessions, the network, configuration, errors, telemetry."""
