"""Ollama's API, so that its clients connect: /api/chat, /api/generate, /api/embed and the pages about models."""
