"""The public names of the package: complete, sorted, loaded at first use."""

from __future__ import annotations

import subprocess
import sys

import paceline
from paceline import errors


def test_exports_are_sorted_and_exist():
    names = paceline.__all__
    assert names == sorted(names, key=lambda n: (n.islower() or n.startswith("_"), not n.isupper(), n))
    for name in names:
        assert getattr(paceline, name) is not None


def test_every_error_is_exported():
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PacelineError)
    }
    assert raised <= set(paceline.__all__)
    assert all(name in (errors.__doc__ or "") for name in raised), "the tree in the docstring lacks an error"


def test_the_package_and_the_command_line_load_without_torch():
    program = "import sys, paceline, paceline.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_names_are_attribute_errors():
    assert not hasattr(paceline, "Llm")
