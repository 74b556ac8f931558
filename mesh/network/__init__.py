"""Streams of messages between processes, over gRPC and inside one process."""
