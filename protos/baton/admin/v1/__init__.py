"""Generated code of baton.admin.v1; see the .proto beside it."""
