"""The gateway shows itself and the mesh: traces of the last requests, metrics, and the pages of `/ui`."""
