"""From a name to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.models import hub
from paceline.models.hub import resolve_model
from tests import tiny


def test_a_local_folder(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "missing", "a/b/c", ""])
def test_a_missing_folder(name: str) -> None:
    with pytest.raises(ModelError, match="does not exist") as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match="is a file"):
        resolve_model(tmp_path / "model.safetensors")


def test_offline_is_one_line() -> None:
    with pytest.raises(ModelError, match="owner/some-model-that-is-not-there") as caught:
        resolve_model("owner/some-model-that-is-not-there")
    assert "\n" not in str(caught.value)


def test_a_hub_id_downloads_what_is_read_and_no_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked[repo_id] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve_model("owner/model") == tmp_path
    patterns = asked["owner/model"]
    assert {"*.safetensors", "*.json", "*.jinja"} <= set(patterns)
    assert not any("bin" in pattern or "pt" in pattern.split(".") for pattern in patterns)


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_DEMO_FOLDERS", (tmp_path / "installed", tmp_path / "checkout"))
    with pytest.raises(ModelError, match="demo target is not installed"):
        resolve_model("demo")
    tiny.make_target(tmp_path / "checkout" / "target", tokenizer=False)
    tiny.make_drafter(tmp_path / "checkout" / "drafter")
    assert resolve_model("demo") == tmp_path / "checkout" / "target"
    assert resolve_model("demo", "drafter") == tmp_path / "checkout" / "drafter"
    tiny.make_drafter(tmp_path / "checkout" / "drafter-sliding")
    assert resolve_model("demo-sliding", "drafter") == tmp_path / "checkout" / "drafter-sliding"
    with pytest.raises(ModelError, match="demo-sliding"):
        resolve_model("demo-sliding")  # it is no model to be served
    tiny.make_target(tmp_path / "installed" / "target", tokenizer=False)
    assert resolve_model("demo") == tmp_path / "installed" / "target"
