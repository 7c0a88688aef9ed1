"""One server for all tests of a module: a tiny model with its MTP head."""

from __future__ import annotations

import pytest

from tests.serve.harness import running
from tests.tiny import make_target


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="session")
def server(folder):
    """Shared by every module that asks nothing special of a server."""
    with running(
        folder,
        served_model_name=["tiny", "other"],
        max_num_seqs=4,
        max_model_len=512,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:
        yield server
