"""Strict YAML sections: what a training command may be told, one file a command."""
