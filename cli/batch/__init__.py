"""`baton batch run`: a file of requests in OpenAI's batch format becomes a file of answers; a run may end anywhere."""
