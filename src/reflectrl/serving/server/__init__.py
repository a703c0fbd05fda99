"""Serve trained agents over an HTTP API that OpenAI's clients speak."""
