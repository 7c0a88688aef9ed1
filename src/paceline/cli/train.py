"""`paceline train`: one sub-command a thing to train; each body lives in `train.<room>.command.run`.

Every body is ``run(config: Path, *, plan: bool, as_json: bool, resume: bool, force: bool, device: str)``;
`device` is ``auto``, ``cpu`` or ``cuda``. Of `eval`: ``run(config, *, plan, as_json, device, seed)``, seed
an int or None. It returns the exit code (None is 0). Results go to stdout, progress to stderr.
"""

from __future__ import annotations
