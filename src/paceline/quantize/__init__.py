"""Quantised checkpoints: NVFP4 and FP8 numbers, recipes, export, MTP graft, inspection, dequantisation."""
