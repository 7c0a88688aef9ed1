"""Training data: prompts in, the target's own answers out, and batches made of them."""
