"""Versions of baton.vllm."""
