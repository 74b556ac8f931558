"""Generated code of baton.inference.v1; see the .proto beside it."""
