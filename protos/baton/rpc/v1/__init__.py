"""Generated code of baton.rpc.v1; see the .proto beside it."""
