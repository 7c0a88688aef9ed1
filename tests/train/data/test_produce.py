"""`paceline train data` on a tiny model: the target's own answers, whatever stops the run half-way."""

from __future__ import annotations

import json

import pytest

from paceline import LLM
from paceline.config import SamplingParams
from paceline.errors import ConfigError
from paceline.train.data import command, trial
from paceline.train.data.answers import Answers
from paceline.train.data.shards import ShardWriter, read_meta, read_samples
from tests.tiny import make_target
from tests.train.data.folders import THINKING_TEMPLATE, set_template, write_lines

QUESTIONS = ["Hi", "Add 3 and 4.", "the then than", "What is it?", "Go on", "a b c", "zz"]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = make_target(tmp_path_factory.mktemp("target"), "odd")
    set_template(folder, THINKING_TEMPLATE)
    return folder


@pytest.fixture
def config(tmp_path, target):
    """Writes a settings file; gives its path."""
    questions = [
        {"id": i, "prompt": text, "category": None if i % 2 else "even"} for i, text in enumerate(QUESTIONS)
    ]
    prompts = write_lines(tmp_path / "prompts.jsonl", questions)

    def write(out="out", **changes):
        values = {
            "model": str(target),
            "prompts": str(prompts),
            "out": str(tmp_path / out),
            "thinking": "both",
            "sampling": {"temperatures": [0.0, 0.9], "n": 2, "max_tokens": 24, "seed": 3},
            "engine": {"max_num_seqs": 5, "max_num_batched_tokens": 128, "max_model_len": 256},
            "filters": {"cut": "keep", "max_repeated": 0.4},
            "rows_per_shard": 8,
            **changes,
        }
        path = tmp_path / f"{out}.yaml"
        path.write_text(json.dumps(values))
        return path

    return write


def contents(folder):
    """Every file that must not depend on how often a run was stopped."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "summary.json"}


def test_samples_are_the_targets_own_answers(tmp_path, target, config, capsys):
    assert command.run(config(), as_json=True) == 0
    summary = json.loads(capsys.readouterr().out)
    samples = list(read_samples(tmp_path / "out"))
    assert summary["kept"] == len(samples) and summary["answers"] == 7 * 2 * 3
    assert summary["kept"] + sum(summary["dropped"].values()) == summary["answers"]
    assert summary["answer_tokens"] == sum(len(s.answer_ids) for s in samples)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    llm = LLM(str(target), max_num_seqs=3, max_model_len=256, max_num_batched_tokens=128)
    for sample in samples:
        temperature = 0.9 if "/t0.9/" in sample.id else 0.0
        params = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
        again = llm.generate([sample.prompt_ids], params, ids=[sample.id])[0]
        assert again.token_ids == sample.answer_ids
        assert ("length", "stop")[sample.answer_ids[-1] in (0, 2)] == sample.finish
    assert {s.category for s in samples} == {"even", None}
    assert {s.finish for s in samples} == {"stop", "length"}
    text = llm.tokenizer.decode
    assert all(text(s.prompt_ids).endswith("<think>\n") == s.thinking for s in samples)
    assert {s.thinking for s in samples} == {True, False}
    meta = read_meta(tmp_path / "out")
    assert (meta["thinking"], meta["temperature"], meta["vocab_size"]) == ("both", [0.0, 0.9], 128)


@pytest.mark.parametrize("answers_before", [2, 9, 20])
def test_a_killed_run_goes_on_to_the_same_shards(tmp_path, config, monkeypatch, capsys, answers_before):
    command.run(config("whole"))
    path = config("stopped")
    with monkeypatch.context() as patch:
        write, left = ShardWriter.write, [answers_before]

        def dies(self, sample):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write(self, sample)

        patch.setattr(ShardWriter, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            command.run(path)
    out = tmp_path / "stopped"
    for torn in [*out.glob("*.unfinished"), *out.glob("dropped.jsonl")]:
        torn.write_bytes(torn.read_bytes()[:-7])
    with pytest.raises(ConfigError, match="--resume goes on, --force begins anew"):
        command.run(path)
    capsys.readouterr()
    command.run(path, resume=True)
    assert "answers stand already" in capsys.readouterr().err
    whole = contents(tmp_path / "whole")
    assert {"dropped.jsonl", "shard-00001.jsonl"} <= set(whole), "the run shows neither drops nor two shards"
    assert contents(out) == whole


def test_going_on_after_the_end_adds_new_prompts_only(tmp_path, config):
    path = config()
    command.run(path)
    before = list(read_samples(tmp_path / "out"))
    more = write_lines(tmp_path / "more.jsonl", [{"prompt": "Another one?"}, {"prompt": "Hi"}])
    command.run(config(prompts=[str(tmp_path / "prompts.jsonl"), str(more)]), resume=True)
    after = list(read_samples(tmp_path / "out"))
    assert after[: len(before)] == before
    assert 0 < len({s.id.split("/")[0] for s in after} - {s.id.split("/")[0] for s in before}) == 1
    with pytest.raises(ConfigError, match="was written with another seed"):
        command.run(config(sampling={"temperatures": [0.0, 0.9], "n": 2, "max_tokens": 24}), resume=True)


def test_force_begins_anew_and_touches_nothing_else(tmp_path, config):
    command.run(config())
    (tmp_path / "out" / "notes.txt").write_text("mine")
    first = contents(tmp_path / "out")
    command.run(config(), force=True)
    assert contents(tmp_path / "out") == first
    with pytest.warns(UserWarning, match="--resume has no effect"):
        command.run(config("new", limit=1), resume=True)


def test_a_file_in_the_place_of_the_folder_is_refused_before_prompts_are_read(tmp_path, config, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(command, "select", lambda _: pytest.fail("it began"))
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        command.run(config("file"))


def test_a_speculating_engine_writes_the_same_shards(tmp_path, config):
    command.run(config("plain"))
    engine = {"max_num_seqs": 5, "max_num_batched_tokens": 128, "max_model_len": 256,
              "speculative_config": {"method": "ngram", "num_speculative_tokens": 3,
                                     "prompt_lookup_max": 3, "prompt_lookup_min": 1}}  # fmt: skip
    command.run(config("drafted", engine=engine))
    assert contents(tmp_path / "plain") == contents(tmp_path / "drafted")


def test_what_cannot_be_answered_is_told_and_the_rest_goes_on(tmp_path, config, capsys):
    long = write_lines(tmp_path / "long.jsonl", [{"id": "long", "prompt": "x" * 300}, {"prompt": "Hi"}])
    command.run(config(prompts=str(long), thinking="off"), as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"] == {"RequestError": 3} and json.loads(out)["answers"] == 3
    assert "long." in err and "is left out: the prompt has" in err


def test_where_nothing_was_kept_only_what_is_there_is_named(tmp_path, config, capsys):
    long = write_lines(tmp_path / "long.jsonl", [{"prompt": "x" * 300}])
    command.run(config(prompts=str(long), thinking="off"))
    assert "no answer was kept\n" in capsys.readouterr().err
    command.run(config("short", filters={"min_tokens": 99}))
    assert f"no answer was kept: {tmp_path / 'short' / 'dropped.jsonl'} has" in capsys.readouterr().err


def test_a_run_that_writes_is_not_swept_away(tmp_path, config):
    path = config()
    command.run(path)
    before = contents(tmp_path / "out")
    with (
        ShardWriter(tmp_path / "out", read_meta(tmp_path / "out")),
        pytest.raises(ConfigError, match="another run is writing"),
    ):
        command.run(path, force=True)
    assert contents(tmp_path / "out") == before


def test_ctrl_c_says_how_to_go_on(config, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "produce", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.run(config())
    assert "stopped: --resume goes on from there" in capsys.readouterr().err


def test_a_plan_writes_nothing(tmp_path, config, capsys):
    held = write_lines(tmp_path / "held.jsonl", [{"prompt": "hi"}])
    assert command.run(config(held_out=str(held)), plan=True, as_json=True) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert (plan["prompts"]["read"], plan["prompts"]["kept"], plan["prompts"]["held_out"]) == (7, 6, 1)
    assert plan["answers"] == 6 * 2 * 3 and plan["tokens_at_most"] == 36 * 24
    assert plan["estimate"]["trial_answers"] == 36 and plan["estimate"]["seconds"] > 0
    assert plan["engine"]["memory"]["total"] > plan["engine"]["memory"]["weights"] > 0
    assert "1 held out" in err and not (tmp_path / "out").exists()
    command.run(config(), plan=True)
    assert "settings.sampling.seed" in capsys.readouterr().out


def test_a_plan_stops_its_trial(config, monkeypatch, capsys):
    monkeypatch.setattr(trial, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.1)
    many = {"temperatures": [1.0], "n": 1000, "max_tokens": 24}
    command.run(config(sampling=many), plan=True, as_json=True)
    plan = json.loads(capsys.readouterr().out)
    estimate = plan["estimate"]
    assert estimate["trial_answers"] < plan["answers"] == 14_000
    assert estimate["seconds"] > estimate["trial_seconds"] and estimate["tokens_per_second"] > 0
    assert 0 < estimate["mean_answer_tokens"] <= 24


def test_progress_is_told(config, capsys):
    command.run(config(report_every=1e-6))
    assert "tokens/s" in capsys.readouterr().err


def test_answers_wait_for_earlier_ones_and_closing_aborts(target):
    """Jobs are taken as they are answered, and nothing stays in the engine."""
    from paceline.engine.assemble import assemble
    from paceline.train.data.answers import Job
    from paceline.train.data.produce import resolve_engine
    from paceline.train.settings.data import DataSettings, GeneratorSettings

    engine = GeneratorSettings(max_num_seqs=2, max_num_batched_tokens=128, max_model_len=64)
    settings = DataSettings(model=str(target), prompts=("p",), out="o", engine=engine)
    parts = assemble(resolve_engine(settings, "auto").config)
    taken = []

    def todo():
        for i in range(30):
            taken.append(i)
            params = SamplingParams(max_tokens=20 if i == 0 else 2, seed=0, ignore_eos=True, temperature=0.0)
            yield Job(str(i), None, False, params, [5, 6])

    answers = Answers(parts)
    running = answers.run(todo())
    order = [answer.job.id for _, answer in zip(range(8), filter(None, running), strict=False)]
    assert order == [str(i) for i in range(8)]
    while not parts.engine.has_work:
        next(running)
    assert len(taken) < 30
    running.close()
    assert not parts.engine.has_work
    parts.engine.scheduler.check()


def test_rollouts_write_what_the_engine_writes(tmp_path, config):
    """Greedy answers are the same samples; a prompt that does not fit is told and left out."""
    plain = {
        "sampling": {"temperatures": [0.0], "max_tokens": 24},
        "filters": {"cut": "keep", "max_repeated": None},
    }
    engine = {"max_num_seqs": 5, "max_model_len": 96}
    command.run(config("engine", engine=engine, **plain), device="cpu")
    command.run(config("rollout", engine=engine, rollout={"slots": 3}, **plain), device="cpu")
    one, other = ({s.id: s for s in read_samples(tmp_path / name)} for name in ("engine", "rollout"))
    assert one == other and len(one) == 2 * len(QUESTIONS)
    assert read_meta(tmp_path / "rollout")["rollout"] is True
    command.run(config("rollout", engine=engine, rollout={"slots": 3}, **plain), device="cpu", resume=True)
    assert {s.id: s for s in read_samples(tmp_path / "rollout")} == one


def test_rollouts_refuse_what_they_do_not_do(config):
    with pytest.raises(ConfigError, match=r"top_p.*temperature and min_p"):
        command.run(config(rollout={"slots": 2}, sampling={"top_p": 0.9}), device="cpu")
    with pytest.raises(ConfigError, match="do not draft"):
        command.run(
            config(rollout={"slots": 2}, engine={"speculative_config": {"method": "ngram"}}), device="cpu"
        )


def test_each_line_may_ask_for_its_own_mode(tmp_path, config):
    lines = [{"id": "a", "prompt": "Hi", "thinking": True}, {"id": "b", "prompt": "Go on"}]
    prompts = write_lines(tmp_path / "asked.jsonl", lines)
    path = config("asked", prompts=str(prompts), thinking="asked")
    command.run(path, device="cpu")
    modes = {s.id.partition(".")[0]: s.thinking for s in read_samples(tmp_path / "asked")}
    assert modes == {"a": True, "b": False}
    assert read_meta(tmp_path / "asked")["thinking"] == "asked"
