"""`/v1/files` and `/v1/batches`: OpenAI's batch API over gateway/batches."""
