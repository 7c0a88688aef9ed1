"""The OpenAI-compatible HTTP server: requests in, the engine's process behind it, answers out."""
