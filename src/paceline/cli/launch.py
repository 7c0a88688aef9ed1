"""The installed entry point: an interrupt is one line from the first moment on, while modules still load."""

from __future__ import annotations

import sys


def run() -> None:
    """Load the command line and run it."""
    try:
        from paceline.cli.main import run as start
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
    start()
