"""The HTTP API describes itself: `/openapi.json`, and `/docs` for people."""
