"""The dialects of other servers: vLLM's tokens in, tokens out and its tokenizer calls, and SGLang's own `/generate`."""
