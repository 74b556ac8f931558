"""Child processes of the gateway, for work that would hold its event loop or that may run away."""
