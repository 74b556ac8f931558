"""`baton replay` sends the requests of a receipt again, reads their answers and says what differs."""
