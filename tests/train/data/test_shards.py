"""Shards: what is written is read, a kill costs one line at most, and kinds of answers do not mix."""

from __future__ import annotations

import json

import pytest

from paceline.errors import CapacityError, ConfigError
from paceline.train.data.shards import Sample, ShardWriter, mend, read_meta, read_samples

META = {"model": "tiny", "temperature": 0.7, "thinking": ["on"]}


def sample(i: int) -> Sample:
    return Sample(f"é-{i}", None if i % 2 else "prose", bool(i % 3), [1, 2, i], [3] * i + [2], "stop")


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_samples_survive_the_disk_in_order(tmp_path):
    with ShardWriter(tmp_path, META, rows_per_shard=3) as writer:
        for i in range(8):
            writer.write(sample(i))
    assert list(read_samples(tmp_path)) == [sample(i) for i in range(8)]
    assert read_meta(tmp_path) == META
    assert [n for n in files(tmp_path) if n.startswith("shard")] == [f"shard-0000{i}.jsonl" for i in range(3)]
    row = json.loads((tmp_path / "shard-00002.jsonl").read_text().splitlines()[1])
    assert row == {
        "id": "é-7", "category": None, "thinking": True, "prompt_ids": [1, 2, 7],
        "answer_ids": [3] * 7 + [2], "finish": "stop",
    }  # fmt: skip


def test_a_full_disk_names_the_shard(tmp_path):
    words = r"shard-00000\.jsonl\.unfinished cannot be written, .* full: make room, then --resume"
    with pytest.raises(CapacityError, match=words), ShardWriter(tmp_path, META) as writer:
        (tmp_path / "shard-00000.jsonl.unfinished").symlink_to("/dev/full")
        writer.write(sample(0))


def test_a_stopped_run_goes_on_behind_its_torn_line(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    with ShardWriter(whole, META, rows_per_shard=3) as writer:
        for i in range(8):
            writer.write(sample(i))
    first = ShardWriter(stopped, META, rows_per_shard=3)
    for i in range(5):
        first.write(sample(i))
    del first  # killed: never closed
    torn = stopped / "shard-00001.jsonl.unfinished"
    torn.write_bytes(torn.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="unfinished"):
        assert len(list(read_samples(stopped))) == 3
    with ShardWriter(stopped, META, rows_per_shard=3) as second:
        assert second.done == {sample(i).id for i in range(4)} and second.rows == 4
        for i in range(4, 8):
            second.write(sample(i))
    assert files(stopped) == files(whole)


def test_a_closed_short_shard_is_filled_up(tmp_path):
    for part in (range(2), range(2, 4)):
        with ShardWriter(tmp_path, META, rows_per_shard=3) as writer:
            for i in part:
                writer.write(sample(i))
    assert [s.id for s in read_samples(tmp_path)] == [sample(i).id for i in range(4)]
    assert (tmp_path / "shard-00000.jsonl").read_bytes().count(b"\n") == 3


def test_an_error_leaves_the_shard_unfinished(tmp_path):
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path, META) as writer:
        writer.write(sample(0))
        raise KeyboardInterrupt
    assert (tmp_path / "shard-00000.jsonl.unfinished").exists()


@pytest.mark.parametrize(("torn", "left"), [(b"a\nbc", b"a\n"), (b"abc", b""), (b"a\n", b"a\n"), (b"", b"")])
def test_mend_cuts_what_has_no_newline(tmp_path, torn, left):
    path = tmp_path / "file"
    path.write_bytes(torn)
    mend(path)
    assert path.read_bytes() == left


def test_other_settings_do_not_mix(tmp_path):
    ShardWriter(tmp_path, META).close()
    with pytest.raises(ConfigError, match=r"another temperature, top_p: give another folder"):
        ShardWriter(tmp_path, {**META, "temperature": 1.0, "top_p": 0.9})


def test_two_writers_are_one_too_many(tmp_path):
    first = ShardWriter(tmp_path, META)
    with pytest.raises(ConfigError, match="another run is writing"):
        ShardWriter(tmp_path, META)
    first.close()
    second = ShardWriter(tmp_path, META)
    with pytest.raises(ConfigError, match="another run is writing"):
        first.write(sample(0))
    second.close()
    first.write(sample(0))


@pytest.mark.parametrize("ids", [[1, 2.0], [1, True], "12", [[1]], None, [1, "2"]])
@pytest.mark.parametrize("name", ["prompt_ids", "answer_ids"])
def test_ids_are_whole_numbers(tmp_path, name, ids):
    row = {**json.loads(sample(1).to_json()), name: ids}
    (tmp_path / "shard-00000.jsonl").write_text(f"{sample(0).to_json()}\n{json.dumps(row)}\n")
    with pytest.raises(ConfigError, match=f"line 2: no sample .*{name} must be a list of whole numbers"):
        list(read_samples(tmp_path))


def test_what_is_no_folder_of_samples_is_named(tmp_path):
    with pytest.raises(ConfigError, match="paceline train data"):
        read_meta(tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "shard-00000.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(ConfigError, match=r"shard-00000.jsonl, line 1: no sample .*category"):
        list(read_samples(tmp_path))
    (tmp_path / "shard-00000.jsonl").rename(tmp_path / "shard-00004.jsonl")
    with pytest.raises(ConfigError, match="lacks shard 0"):
        ShardWriter(tmp_path, {})
