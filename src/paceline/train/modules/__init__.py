"""Differentiable models for training: fp32 master weights, whole sequences at once, the names of published
tensors. The engine's models are the judges: tests compare the two on the same folder."""
