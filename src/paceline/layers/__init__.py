"""Layers: thin compositions of the operators in `paceline.kernels` over one flat batch."""
