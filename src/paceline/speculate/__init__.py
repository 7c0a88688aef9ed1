"""Speculation: proposers guess tokens, one verification pass keeps those that the target would have
sampled."""
