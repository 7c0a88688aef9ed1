"""Training: a target's own answers, drafters and multi-token heads for it, and small hybrids, in plain torch;
each command of `paceline train` is a room of its own."""
