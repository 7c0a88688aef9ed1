"""`evaluate`: every figure against its definition, on tiny models."""

from __future__ import annotations

import json
from math import exp
from xml.etree import ElementTree

import pytest
import torch

from paceline import LLM
from paceline.errors import CheckpointError, ConfigError, PairingError
from paceline.quantize import evaluate as module
from paceline.quantize.acceptance import Question
from paceline.quantize.dequantize import dequantize
from paceline.quantize.divergence import compare
from paceline.quantize.evaluate import EvaluateOptions, evaluate
from paceline.quantize.evaluation_plot import check_plot_path, svg
from tests.quantize.folders import edit_tensors, quantize_tiny, tiny_model

TEXT = "the quick brown fox jumps over the lazy dog, and then it rests for a while. " * 4
QUESTIONS = [Question("a", "prose", "the quick brown"), Question("b", "code", "def f(x):")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("base") / "model", vision=False, tokenizer=True)


@pytest.fixture(scope="module")
def quantised(base):
    out = base.parent / "quantised"
    quantize_tiny(base, out)
    return out


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def run(model, base, **options):
    return evaluate(str(model), str(base), EvaluateOptions(device="cpu", **options))


def logits_of(folder, ids):
    llm = LLM(str(folder), device="cpu")
    found = llm.teacher_forced_logits(ids).double()
    llm.close()
    return found


def test_figures_against_their_definitions(base, quantised, text):
    found = run(quantised, base, text=text)
    ids = LLM(str(base), device="cpu").encode(TEXT)
    assert found.windows == [len(ids)] and found.acceptance is None
    log_p, log_q = (logits_of(folder, ids).log_softmax(-1) for folder in (base, quantised))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert torch.allclose(found.compared.kl, kl, atol=1e-12)
    assert found.kl()["mean"] == pytest.approx(kl.mean().item()) and found.kl()["mean"] > 1e-6
    assert found.kl()["median"] == pytest.approx(kl.quantile(0.5).item())
    assert found.kl()["median"] <= found.kl()["p99_9"] <= found.kl()["max"]
    assert found.top1_agreement == (log_p.argmax(-1) == log_q.argmax(-1)).double().mean().item()
    following = torch.tensor(ids[1:]).unsqueeze(1)
    for name, log in (("base", log_p), ("model", log_q)):
        expected = exp(-log[:-1].gather(1, following).mean().item())
        assert found.perplexity()[name] == pytest.approx(expected)


def test_a_decoded_model_gives_the_same_figures(base, quantised, text, tmp_path):
    dequantize(quantised, tmp_path / "plain")
    a, b = run(quantised, base, text=text).to_json(), run(tmp_path / "plain", base, text=text).to_json()
    assert {**a, "model": None} == {**b, "model": None}


def test_a_model_against_itself_loses_nothing(base, text, monkeypatch):
    loads = []
    load = module.Pair.load
    monkeypatch.setattr(module.Pair, "load", lambda *args: loads.append(args) or load(*args))
    found = run(base, base, text=text)
    assert found.kl() == {"mean": 0.0, "median": 0.0, "p99_9": 0.0, "max": 0.0}
    assert found.top1_agreement == 1.0
    assert found.perplexity()["base"] == found.perplexity()["model"]
    assert found.groups and all(group.kl_mean == 0 == group.tensors for group in found.groups)
    assert len(loads) == 2, "groups without a difference need no pass"


def test_a_change_shows_in_its_groups_alone(base, text, tmp_path):
    other = tiny_model(tmp_path / "other", vision=False, tokenizer=True)
    edit_tensors(other, lambda t: {n: w * 1.5 if "layers.3.mlp.down" in n else w for n, w in t.items()})
    found = run(other, base, text=text)
    hit = {group.name: group.kl_mean for group in found.groups if group.tensors}
    assert set(hit) == {"layer 3", "MLP"}
    assert hit["layer 3"] == hit["MLP"] == found.kl()["mean"] > 0


def test_names_of_the_wrapper_and_plain_ones_are_the_same_model(base, text, tmp_path):
    flat = tiny_model(tmp_path / "flat", vision=False, tokenizer=True, nested=False)
    assert run(flat, base, text=text).kl()["max"] == 0.0


def test_never_more_than_a_block_of_logits(base, quantised, text, monkeypatch):
    rows = []

    def watched(a, b, following):
        rows.append(len(a))
        return compare(a, b, following)

    monkeypatch.setattr(module, "compare", watched)
    monkeypatch.setattr(module, "WINDOW", 100)
    found = run(quantised, base, text=text, by_layers=False)
    assert max(rows) <= 64 and sum(rows) == sum(found.windows)
    assert max(found.windows) == 100 and len(found.windows) > 1
    positions = found.by_position()
    assert [p.first for p in positions] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert sum(p.tokens for p in positions) == sum(found.windows)
    weighted = sum(p.tokens * p.kl_mean for p in positions) / sum(found.windows)
    assert weighted == pytest.approx(found.kl()["mean"])


def test_acceptance_by_category_before_and_after(base, quantised):
    found = run(
        quantised, base, questions=QUESTIONS, speculative={"method": "mtp"}, max_tokens=12, by_layers=False
    )
    assert set(found.categories()) == {"prose", "code", "all"}
    for sides in found.categories().values():
        for side in sides.values():
            assert side["acceptance_length"] >= 1 and 0 <= side["draft_acceptance_rate"] <= 1
    # without a text, distributions are compared on the prompts and the base's answers
    llm = LLM(str(base), device="cpu")
    prompts = [len(llm.encode(question.text, chat=True)) for question in QUESTIONS]
    assert [a < b <= a + 12 for a, b in zip(prompts, found.windows, strict=True)] == [True, True]
    json.dumps(found.to_json(), allow_nan=False)


def test_the_plot_is_svg_with_every_group(base, quantised, text):
    found = run(quantised, base, text=text)
    labels = [node.text for node in ElementTree.fromstring(svg(found)).iter() if node.text]
    assert all(group.name in labels for group in found.groups)
    ElementTree.fromstring(svg(run(base, base, text=text, by_layers=False)))  # nothing to draw


def test_bad_input(base, quantised, tmp_path, text):
    other = tiny_model(tmp_path / "other", vision=False, tokenizer=True, shape="three")
    with pytest.raises(PairingError, match="num_layers"):
        run(other, base, text=text)
    (tmp_path / "short.txt").write_text("")
    with pytest.raises(ConfigError, match="tokens"):
        run(base, base, text=tmp_path / "short.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(base, base, text=tmp_path / "bytes.txt")
    broken = tiny_model(tmp_path / "broken", vision=False, tokenizer=True)
    edit_tensors(broken, lambda t: {n: w * float("nan") if "down" in n else w for n, w in t.items()})
    with pytest.raises(CheckpointError, match="no numbers"):
        run(broken, base, text=text)


def test_a_lost_head_is_found_before_anything_runs(base, tmp_path, monkeypatch):
    quantize_tiny(base, tmp_path / "headless", mtp="drop")
    monkeypatch.setattr(module, "answer", None)
    with pytest.raises(PairingError, match="headless"):
        run(tmp_path / "headless", base, questions=QUESTIONS, speculative={"method": "mtp"})


@pytest.mark.parametrize(("name", "part"), [("kl.png", "SVG"), ("kl", "SVG"), ("nowhere/kl.svg", "nowhere")])
def test_where_a_plot_can_go(tmp_path, name, part):
    with pytest.raises(ConfigError, match=part):
        check_plot_path(tmp_path / name)
    check_plot_path(tmp_path / "kl.svg")
