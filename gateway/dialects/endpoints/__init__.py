"""The endpoints of the HTTP API: one table, from which routes, guards, headers and the description are derived."""
