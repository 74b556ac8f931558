"""`baton envoy`: configurations of the Envoys beside the services, and certificates for trying them out."""
