"""Answers of a given form: with drafts and without, behind a token, through preemption, and refused ones."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("xgrammar")

from paceline import LLM, SamplingParams
from paceline.engine.detokenizer import TokenBytes
from paceline.engine.grammar import MOST_WHITESPACE, Grammars, Structure, allowed_ids
from paceline.engine.request import Request
from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import RequestError
from tests.tiny import EOS, IM_END, make_target

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "can", "the man"]},
        "many": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        "of": {"type": "object", "properties": {"n": {"enum": [1, 12]}}, "required": ["n"]},
    },
    "required": ["kind", "many", "of"],
    "additionalProperties": False,
}
FORM = Structure("json_schema", json.dumps(SCHEMA), "response_format.json_schema")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("grammar") / "tiny")


@pytest.fixture(scope="module")
def plain(folder):
    return LLM(str(folder), device="cpu", max_model_len=512)


@pytest.fixture(scope="module")
def drafting(folder):
    speculative = {"method": "mtp", "num_speculative_tokens": 4, "draft_sample_method": "coupled"}
    return LLM(str(folder), device="cpu", max_model_len=512, speculative_config=speculative)


def run(llm, requests):
    for request in requests:
        llm.engine.add(request)
    outputs = {}
    while llm.engine.has_work:
        for event in llm.engine.step():
            assert event.error is None
            if event.output:
                outputs[event.id] = event.output
    return [outputs[request.id] for request in requests]


def request(seed, structure=FORM, temperature=1.0, **more):
    params = SamplingParams(temperature=temperature, max_tokens=200, **more)
    return Request(str(seed), [5, 6, 7, seed], params, seed, structure=structure)


def check(text):
    value = json.loads(text)
    assert value["kind"] in ("cat", "can", "the man") and value["of"]["n"] in (1, 12)
    assert 2 <= len(value["many"]) <= 3 and all(isinstance(item, bool) for item in value["many"])


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_the_form_holds_and_drafts_leave_the_text_alone(plain, drafting, temperature):
    requests = [request(seed, temperature=temperature, repetition_penalty=1.1) for seed in range(8, 16)]
    expected, found = run(plain, requests), run(drafting, requests)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    done = [output for output in found if output.finish_reason == "stop"]
    assert len(done) >= (6 if temperature else 1)
    for output in done:
        check(output.text)
    drafted = sum(output.stats.num_draft_tokens for output in found)
    accepted = sum(output.stats.num_accepted_tokens for output in found)
    assert 0 < accepted < drafted


def test_others_in_the_batch_are_free(plain, drafting):
    both = [request(20), request(21, structure=None)]
    (formed, free), (alone,) = run(drafting, both), run(plain, [request(21, structure=None)])
    check(formed.text)
    assert free.token_ids == alone.token_ids


def test_the_form_holds_behind_a_token_alone(plain, drafting):
    table = TokenBytes(load_tokenizer(plain._parts.resolved.folder).backend)
    marker = next(i for i in range(128) if table[i] == b"z")
    form = Structure("json_schema", FORM.text, FORM.param, after=marker)
    requests = [request(seed, structure=form, logit_bias={marker: 3.0}) for seed in range(8, 14)]
    expected, found = run(plain, requests), run(drafting, requests)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    behind = [o.text.split("z", 1) for o in found if o.finish_reason == "stop" and "z" in o.text]
    assert any(before for before, _ in behind)
    for _, text in behind:
        check(text)


def test_rows_are_masked_as_if_the_drafts_before_them_were_written(folder):
    tokenizer = load_tokenizer(folder)
    table = TokenBytes(tokenizer.backend)
    grammars = Grammars(table, tokenizer.size, [EOS, IM_END])
    schema = '{"enum": ["a", "to"]}'
    state = grammars.start(Structure("json_schema", schema, "x"))
    ids = {table[i]: i for i in range(tokenizer.size)}
    drafts = [ids[b'"'], ids[b"t"], ids[b"o"], ids[b'"'], IM_END, ids[b"a"]]
    cpu = torch.device("cpu")
    rows = allowed_ids([state], [drafts], [0], (7, tokenizer.size), cpu)
    names = [{table[i] for i in row.nonzero().flatten().tolist()} for row in rows]
    assert names[0] == {b'"'} and names[1] == {b"a", b"t"} and names[2] == {b"o"}
    assert IM_END in rows[4].nonzero().flatten().tolist() and rows[4].sum() <= 2
    assert rows[5].all() and rows[6].all()  # behind the end: dropped anyway
    wrong = allowed_ids([state], [[ids[b'"'], ids[b"x"], ids[b"o"]]], [0], (4, tokenizer.size), cpu)
    assert wrong[1].sum() == 2 and wrong[2].all()
    state.advance(drafts[:2])
    assert allowed_ids([state], [[]], [0], (1, tokenizer.size), cpu).equal(rows[2:3])


@pytest.mark.parametrize("form", [FORM, Structure("json", "", "response_format")])
def test_a_model_that_likes_blanks_comes_to_an_end(folder, form):
    tokenizer = load_tokenizer(folder)
    table = TokenBytes(tokenizer.backend)
    ids = {table[i]: i for i in range(tokenizer.size)}
    state = Grammars(table, tokenizer.size, [IM_END]).start(form)
    assert state.advance([ids[b"{"]])
    assert state.advance([ids[b" "]] * MOST_WHITESPACE)
    assert not state.advance([ids[b" "]])


@pytest.mark.parametrize("schema", ['{"type": "nonsense"}', "{", '{"$ref": "#/nowhere"}'])
def test_a_form_that_cannot_be_compiled_is_refused(plain, schema):
    form = Structure("json_schema", schema, "response_format.json_schema")
    with pytest.raises(RequestError) as error:
        plain.engine.add(request(1, structure=form))
    assert error.value.param == "response_format.json_schema"
    assert ".cc" not in str(error.value)
    assert not plain.engine.has_work


@pytest.mark.parametrize("llm", ["plain", "drafting"])
def test_a_dead_end_fails_its_request_alone(llm, request):
    llm = request.getfixturevalue(llm)
    form = Structure("json_schema", '{"enum": ["\u00fc"]}', "response_format.json_schema")  # no such byte
    params = SamplingParams(temperature=1.0, max_tokens=30, n=2)
    llm.engine.add(Request("dead", [5, 6], params, 1, structure=form))
    llm.engine.add(Request("alive", [5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True), 1))
    events = []
    while llm.engine.has_work:
        events += llm.engine.step()
    errors = [event for event in events if event.error]
    assert [event.id for event in errors] == ["dead"] and isinstance(errors[0].error, RequestError)
    assert [len(e.output.token_ids) for e in events if e.output and e.id == "alive"] == [9]
    assert llm.engine.scheduler.blocks.num_free == llm.engine.scheduler.blocks.num_usable
