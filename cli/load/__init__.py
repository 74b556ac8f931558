"""`baton bench load`: sends requests to any OpenAI API and measures its latencies and its goodput."""
