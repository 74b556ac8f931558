"""The OpenAI API over HTTP: bodies in, whole answers and streams out."""
