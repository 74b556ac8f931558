"""How commands reach a gateway: its key, its certificates, its health."""
