"""Examinations of prompts."""
