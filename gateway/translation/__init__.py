"""What the translations of other chat APIs into a chat completion share."""
