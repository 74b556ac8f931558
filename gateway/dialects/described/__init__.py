"""The answers of the HTTP API as types, for its description."""
