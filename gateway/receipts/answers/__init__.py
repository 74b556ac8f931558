"""What a client reads around a receipt: read the same way by the gateway that signs it and by `baton receipt`."""
