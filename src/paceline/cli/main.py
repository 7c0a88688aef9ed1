"""`paceline`: finds the command, runs it, and turns what went wrong into one line and an exit code.

Exit codes of every command: 0 done, 1 checked and failed, 2 bad input or usage, 130 interrupted. `verify`
adds 3: nothing proven. 70 means a fault in paceline itself. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from paceline import __version__
from paceline.cli.demo import demo
from paceline.cli.dequantize import dequantize
from paceline.cli.evaluate import evaluate
from paceline.cli.generate import generate
from paceline.cli.graft_mtp import graft_mtp
from paceline.cli.inspect import inspect
from paceline.cli.quantize import quantize
from paceline.cli.serve import serve
from paceline.cli.threads import settle_threads
from paceline.cli.train import train
from paceline.cli.verify import verify
from paceline.errors import PacelineError

DONE, FAILED, BAD_INPUT, UNPROVEN, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 70, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="paceline", message="%(prog)s %(version)s")
def app() -> None:
    """Speculative decoding for hybrid language models: faster, and the same text."""
    settle_threads()


for command in (demo, dequantize, evaluate, generate, graft_mtp, inspect, quantize, serve, train, verify):
    app.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing but `--debug` prints a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with app.make_context("paceline", arguments) as context:
            result = app.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else DONE
    except click.exceptions.Exit as leaving:  # --help and --version
        return leaving.exit_code
    except BaseException as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Say in one line on stderr what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _say("interrupted", INTERRUPTED)
    if isinstance(error, BrokenPipeError):
        # The reader of our results has left, as `head` does. Without this, Python complains when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return BAD_INPUT
    if isinstance(error, click.ClickException):
        return _say(error.format_message(), BAD_INPUT)
    if isinstance(error, PacelineError):
        return _say(str(error), BAD_INPUT)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}", BAD_INPUT)
    return _say(f"internal error, please report it (--debug shows where): {error!r}", INTERNAL)


def _say(message: str, code: int) -> int:
    print(f"paceline: {' '.join(message.split())}", file=sys.stderr)
    return code


def run() -> None:
    """The whole program: warnings, too, are one line each, results are UTF-8 in any locale, and a stream that
    the caller has closed reads as empty and swallows what is written."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, stays open to the end
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"paceline: {' '.join(str(message).split())}\n"
    sys.exit(main())


if __name__ == "__main__":
    run()
