"""Dialogues made by rule: every one a pure function of (seed, index, split), in the demo's chat format."""
