"""HTTP itself: the ASGI application, its server, headers and errors."""
