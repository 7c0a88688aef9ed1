"""The command line: one thin file a command; options come from the configuration models."""
