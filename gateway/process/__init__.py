"""The process of a gateway: its listeners, how it starts beside siblings and leaves."""
