"""What `baton replay` does with a receipt: the requests it sends, their answers, and what differs."""
