"""A file of settings is read strictly, and what is wrong with it is said in one line that helps."""

from __future__ import annotations

import math
from typing import Annotated

import pytest
from pydantic import Field

from paceline.errors import ConfigError
from paceline.train.settings.base import Section, load_yaml
from paceline.train.settings.optim import OptimSettings


class Inner(Section):
    rows: int = 1
    names: tuple[str, ...] = ()


class Bounded(Section):
    size: Annotated[int, Field(ge=300)]


class Other(Section):
    columns: int = 2


class Whole(Section):
    folder: Annotated[str, Field(min_length=1)] | Bounded | None = None
    rate: float = 1.0
    batch_size: int
    inner: Inner = Inner()
    either: Inner | Other | None = None
    several: tuple[Other, ...] = ()
    by_name: dict[str, Other] = Field(default_factory=dict)


def read(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return load_yaml(path, Whole)


def test_sections_lists_and_defaults(tmp_path):
    text = (
        "batch_size: 2\ninner: {rows: 3, names: [a, b]}\nseveral:\n  - columns: 5\nby_name: {x: {columns: 7}}"
    )
    whole = read(tmp_path, text)
    assert whole.inner == Inner(rows=3, names=("a", "b"))
    assert whole.several == (Other(columns=5),) and whole.by_name["x"].columns == 7
    with pytest.raises(ValueError, match="frozen"):
        whole.rate = 2.0


@pytest.mark.parametrize(
    "text, value", [("6e-4", 6e-4), ("1E3", 1000.0), (".5", 0.5), ("-2.", -2.0), ("3", 3)]
)
def test_numbers_are_those_of_yaml_1_2(tmp_path, text, value):
    assert math.isclose(read(tmp_path, f"batch_size: 1\nrate: {text}").rate, value)


def test_a_date_is_text(tmp_path):
    assert read(tmp_path, "batch_size: 1\ninner: {names: [2026-01-31]}").inner.names == ("2026-01-31",)


@pytest.mark.parametrize(
    "text, key, message",
    [
        ("batchsize: 1", "batchsize", "unknown key batchsize: did you mean batch_size?"),
        ("batch_size: 1\ninner: {row: 1}", "inner.row", "unknown key inner.row: did you mean rows?"),
        ("batch_size: 1\ninner: {zz: 1}", "inner.zz", "unknown key inner.zz: known keys: names, rows"),
        ("batch_size: 1\nseveral: [{column: 1}]", "several.0.column", "did you mean columns?"),
        ("batch_size: 1\nby_name: {x: {colum: 1}}", "by_name.x.colum", "did you mean columns?"),
        ("rate: 1", "batch_size", "batch_size: Field required"),
        ("batch_size: '1'", "batch_size", "batch_size: Input should be a valid integer"),
        ("batch_size: 1\nrate: .inf", "rate", "finite number"),
        ("- 1", None, "settings are `key: value` lines; known keys: batch_size, by_name"),
        ("", None, "settings are `key: value` lines"),
        ("batch_size: 1\nbatch_size: 2", None, "key batch_size stands there twice"),
        ("1: 2", None, "key 1 is no text"),
        ("batch_size: [", None, "cannot read"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_the_remedy(tmp_path, text, key, message):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert "settings.yaml" in str(raised.value) and message in str(raised.value)
    assert raised.value.key == key and "\n" not in str(raised.value)


def test_a_union_knows_the_keys_of_all_its_sections(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean columns\?"):
        read(tmp_path, "batch_size: 1\neither: {column: 1}")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml"):
        load_yaml(tmp_path / "nowhere.yaml", Whole)


def test_something_must_end_a_run():
    with pytest.raises(ValueError, match="set epochs, max_steps or seconds"):
        OptimSettings()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{size: 3}", r"folder\.size: Input should be greater than or equal to 300"),
        ("{siz: 3}", r"unknown key folder\.siz: did you mean size\?"),
        ("3", r"folder: Input should be"),
        ("''", r"folder: String should have at least 1 character"),
    ],
)
def test_a_text_or_a_section_is_judged_as_what_it_is(tmp_path, value, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, f"batch_size: 1\nfolder: {value}")
