"""Generated code of baton.kv.v1; see the .proto beside it."""
