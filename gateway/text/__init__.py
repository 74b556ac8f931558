"""Prompts and answers as text: tokenizer, chat template, tools and stop strings of the served model."""
