"""Judging what was trained, by the engine that serves it."""
