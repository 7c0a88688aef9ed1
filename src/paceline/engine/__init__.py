"""The loop: which sequences run next, how a step is laid out, and what comes out of it."""
