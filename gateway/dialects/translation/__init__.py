"""The parts that all translations of other chat APIs into a chat completion share."""
