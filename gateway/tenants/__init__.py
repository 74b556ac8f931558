"""Tenants: who calls, how much each may use, and what keeps their prompts apart."""
