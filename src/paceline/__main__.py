"""`python -m paceline`: the command line, where the installed script is not on the path."""

from __future__ import annotations

from paceline.cli.launch import run

if __name__ == "__main__":
    run()
