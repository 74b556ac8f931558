"""Generated code of baton.worker.v1; see the .proto beside it."""
