"""Generated code of the package vllm; see the .proto beside it."""
