"""The sampler: what each parameter does, and that windows, batches and preemption change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.sampling import SamplingParams
from paceline.errors import RequestError
from paceline.kernels.sample import gumbel_noise, request_key
from paceline.speculate.processors import bad_word_ids, keep_likeliest, log_probabilities
from paceline.speculate.sampler import Sampler, SampleRows, SamplingRequest
from tests.speculate.sampling_oracle import CASES, PROMPT, VOCAB, processed_row, request


def tensor(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def logits_of(count: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    """[count, vocab] logits with plenty of ties."""
    drawn = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return (drawn * 4).round() / 4


def decode_alone(made: SamplingRequest, logits: torch.Tensor) -> tuple[list[int], list[torch.Tensor]]:
    """One token at a time, alone: tokens, and the scores that each was taken from."""
    sampler = Sampler(VOCAB, 2, "cpu")
    sampler.add(1, made)
    tokens, scores = [], []
    for step, row in enumerate(logits):
        rows = SampleRows.single(tensor(1), tensor(len(PROMPT) + step))
        scores.append(sampler.process(row[None], rows)[0])
        tokens.append(int(sampler.sample(row[None], rows)))
        sampler.commit(tensor(1), tensor(tokens[-1])[None], tensor(1))
    return tokens, scores


@pytest.mark.parametrize("name", CASES)
def test_a_window_equals_one_token_at_a_time(name: str) -> None:
    """Bit for bit, in one batch with every other case, for windows of changing lengths and wrong drafts."""
    logits = {case: logits_of(24, seed=i) for i, case in enumerate(CASES)}
    made = {case: request(key=i, **fields) for i, (case, fields) in enumerate(CASES.items())}
    tokens, scores = decode_alone(made[name], logits[name])
    assert len(set(tokens)) > 1

    batch = Sampler(VOCAB, len(CASES) + 1, "cpu")
    for slot, case in enumerate(CASES, start=1):
        batch.add(slot, made[case])
    done, width = 0, 1
    while done + width <= 24:
        # The last draft is wrong (where there is one): its row's result is thrown away.
        drafts = torch.tensor([*tokens[done : done + width - 1], -1])[:width]
        if width > 1:
            drafts[width - 2] = (drafts[width - 2] + 1) % VOCAB
        row_seq = torch.arange(len(CASES)).repeat_interleave(width)
        start = torch.arange(len(CASES)) * width
        positions = len(PROMPT) - 1 + done + torch.arange(width).repeat(len(CASES))
        slots = torch.arange(1, len(CASES) + 1)
        rows = SampleRows.windows(slots, drafts.expand(len(CASES), -1), row_seq, start, positions)
        flat = torch.cat([logits[case][done : done + width] for case in CASES])
        first = list(CASES).index(name) * width
        good = max(width - 1, 1)
        assert torch.equal(
            batch.process(flat, rows)[first : first + good], torch.stack(scores[done : done + good])
        )
        sampled = batch.sample(flat, rows)[first : first + width]
        assert sampled[:good].tolist() == tokens[done : done + good]
        emitted = torch.zeros(len(CASES), width, dtype=torch.int64)
        emitted[list(CASES).index(name)] = sampled
        batch.commit(slots, emitted, torch.full_like(slots, good))
        done, width = done + good, width % 6 + 1


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_definitions(name: str) -> None:
    made = request(**CASES[name])
    logits = logits_of(24, seed=5)
    tokens, scores = decode_alone(made, logits)
    for step, row in enumerate(logits):
        wanted = processed_row(row, made.params, PROMPT, tokens[:step], made.stop_ids, made.bad_words)
        assert scores[step].tolist() == wanted, (name, step)
        if not made.params.greedy:
            noise = gumbel_noise(tensor(made.key), tensor(len(PROMPT) + step), VOCAB)[0]
            wanted = (torch.tensor(wanted) + noise).tolist()
        assert tokens[step] == wanted.index(max(wanted))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-6, 6), min_size=1, max_size=30),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    temperature=st.sampled_from([0.25, 1.0, 3.0]),
)
def test_filters_with_ties(
    values: list[int], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Exactly k ids, the lowest first among equals; the shortest prefix that reaches p."""
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    row = torch.tensor(values, dtype=torch.float32) / 2
    sampler = Sampler(len(values), 2, "cpu")
    sampler.add(1, SamplingRequest(params, 1, [0], ()))
    got = sampler.process(row[None], SampleRows.single(tensor(1), tensor(1)))[0]
    assert got.tolist() == processed_row(row, params, [0], [])


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_top_p_over_a_large_vocabulary(spread: float) -> None:
    """The short way of the CPU (best candidates first) and the whole sort agree, whoever shares the batch."""
    vocab = 3000
    scores = torch.randn(4, vocab, generator=torch.Generator().manual_seed(1)) * spread
    top_k, top_p = tensor(vocab, vocab, 5, 1200), torch.tensor([0.9, 1.0, 0.7, 0.8], dtype=torch.float64)
    together = keep_likeliest(scores, top_k, top_p, vocab)
    for i in range(4):
        one = slice(i, i + 1)
        alone = keep_likeliest(scores[one], top_k[one], top_p[one], vocab)[0]
        assert torch.equal(together[i], alone)
        params = SamplingParams(top_p=float(top_p[i]), top_k=int(top_k[i]) % vocab)
        assert alone.tolist() == processed_row(scores[i], params, [0], [])


@pytest.mark.parametrize("vocab", [40, 1100, 5003])
def test_rows_do_not_depend_on_their_number(vocab: int) -> None:
    """R = 1 against R = 1..40, every processor in the batch: bit for bit."""
    sampler = Sampler(vocab, len(CASES) + 1, "cpu")
    for slot, fields in enumerate(CASES.values(), start=1):
        sampler.add(slot, request(key=slot, **fields))
    logits = torch.randn(40, vocab, generator=torch.Generator().manual_seed(3)) * 4
    slots = torch.arange(40) % len(CASES) + 1
    offsets = torch.arange(40) % 4
    drafts = torch.arange(120).view(40, 3) % 11

    def rows(where: slice) -> SampleRows:
        return SampleRows(slots[where], torch.arange(40)[where] + 9, offsets[where], drafts[where])

    full, tokens = sampler.process(logits, rows(slice(40))), sampler.sample(logits, rows(slice(40)))
    for count in (1, 2, 3, 7, 16, 33):
        part = slice(40 - count, 40)
        assert torch.equal(sampler.process(logits[part], rows(part)), full[part])
        assert torch.equal(sampler.sample(logits[part], rows(part)), tokens[part])


def test_a_neutral_request_is_untouched_by_its_neighbours() -> None:
    logits = logits_of(1)
    alone, crowded = Sampler(VOCAB, 4, "cpu"), Sampler(VOCAB, 4, "cpu")
    alone.add(1, request())
    crowded.add(2, request(**CASES["everything"]))
    crowded.add(3, request(top_p=0.5))
    crowded.add(1, request())
    rows = SampleRows.single(tensor(1), tensor(5))
    assert alone.plan.candidates == 0 and not alone.plan.history
    assert crowded.plan.candidates == VOCAB and crowded.plan.history
    assert torch.equal(alone.process(logits, rows), crowded.process(logits, rows))


def test_ids_beyond_the_tokenizer_are_never_sampled() -> None:
    logits = torch.zeros(2, VOCAB + 8)
    logits[:, VOCAB:] = 50.0
    sampler = Sampler(VOCAB, 3, "cpu")
    sampler.add(1, request(temperature=0.0))
    rows = SampleRows.single(tensor(1, 1), tensor(4, 5))
    assert sampler.sample(logits, rows).tolist() == [0, 0]
    sampler.add(2, request(top_p=0.9))
    rows = SampleRows.single(tensor(1, 2), tensor(4, 5))
    assert int(sampler.sample(logits, rows).max()) < VOCAB
    drafts = sampler.draft(logits[:, None], tensor(1, 2), tensor(3, 4), 0, torch.zeros(2, 0).long(), "greedy")
    assert drafts.tolist() == [[0], [0]]


@pytest.mark.parametrize("name", CASES)
def test_a_preempted_sequence_goes_on_in_another_slot(name: str) -> None:
    made, logits = request(**CASES[name]), logits_of(12, seed=2)
    tokens, scores = decode_alone(made, logits)
    for moved in range(1, 11):
        sampler = Sampler(VOCAB, 4, "cpu")
        sampler.add(3, request(**CASES["everything"]), [1, 2])
        sampler.remove(3)
        sampler.add(3, made, tokens[:moved])
        for step in (moved, moved + 1):
            rows = SampleRows.single(tensor(3), tensor(len(PROMPT) + step))
            assert torch.equal(sampler.process(logits[step : step + 1], rows)[0], scores[step])
            sampler.commit(tensor(3, 0), tensor(tokens[step], 0)[:, None], tensor(1, 0))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [0, 2])
def test_coupled_drafts_are_what_the_target_would_sample(name: str, first: int) -> None:
    """A drafter with the target's own logits is always right, with any processor, wherever it starts."""
    made, logits = request(**CASES[name]), logits_of(9, seed=8)
    tokens, _ = decode_alone(made, logits)
    sampler = Sampler(VOCAB, 3, "cpu")
    sampler.add(2, made, tokens[:3])
    drafted = torch.tensor([tokens[3 : 3 + first]], dtype=torch.int64)
    anchor = tensor(len(PROMPT) + 2)
    got = sampler.draft(logits[None, 3 + first : 8], tensor(2), anchor, first, drafted, "coupled")
    assert got.tolist() == [tokens[3 + first : 8]]


def test_greedy_drafts_are_the_drafters_best() -> None:
    logits = logits_of(6).view(2, 3, VOCAB)
    sampler = Sampler(VOCAB, 3, "cpu")
    sampler.add(1, request(**CASES["everything"]))
    got = sampler.draft(logits, tensor(1, 0), tensor(9, 0), 0, torch.zeros(2, 0).long(), "greedy")
    assert torch.equal(got, logits.argmax(-1))


def test_bad_words_never_empty_a_row() -> None:
    """Where a bad word's end is all that may follow, it may."""
    made = SamplingRequest(
        SamplingParams(allowed_token_ids=[1, 2], bad_words=["x"], temperature=0.0),
        1,
        [0],
        (),
        ((1, 2), (1, 1)),
    )
    sampler = Sampler(4, 2, "cpu")
    sampler.add(1, made, [1])
    got = sampler.process(torch.zeros(1, 4), SampleRows.single(tensor(1), tensor(2)))[0]
    assert got.tolist() == [-math.inf, 0.0, 0.0, -math.inf]


def test_requests_that_leave_nothing_are_refused() -> None:
    sampler = Sampler(VOCAB, 2, "cpu")
    for fields in (
        {"allowed_token_ids": [7], "min_tokens": 1},
        {"allowed_token_ids": [5], "bad_words": ["x"]},
        {"allowed_token_ids": [99]},
    ):
        with pytest.raises(RequestError) as caught:
            sampler.add(1, request(**fields))
        assert caught.value.param == "allowed_token_ids"
    sampler.add(1, request())


def test_bad_word_ids_take_the_form_after_a_space_too() -> None:
    vocabulary = {"cat": [1], " cat": [2], "dog": [3, 4], " dog": [5, 4], "mouse": [6], " mouse": [7, 8]}
    encode = vocabulary.__getitem__
    assert bad_word_ids(["cat", " dog", "mouse"], encode) == ((1,), (2,), (3, 4), (5, 4), (6,))
    with pytest.raises(RequestError, match="has no tokens"):
        bad_word_ids([" "], lambda text: [])
    with pytest.raises(RequestError, match="has 200 tokens; a word has at most 32") as caught:
        bad_word_ids(["x" * 200], lambda text: [1] * len(text))
    assert caught.value.param == "bad_words"


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = logits_of(5)
    tokens = tensor(0, 1, 2, 3, 39)
    chosen, top = log_probabilities(logits, tokens, 4)
    wanted = torch.log_softmax(logits, -1)
    assert torch.equal(chosen, wanted[torch.arange(5), tokens])
    for row in range(5):
        order = sorted(range(VOCAB), key=lambda i: (-wanted[row, i].item(), i))[:4]
        assert top.ids[row].tolist() == order and top.scores[row].tolist() == wanted[row, order].tolist()
    assert log_probabilities(logits, tokens, 0)[1].ids.shape == (5, 0)


def test_choices_differ_and_the_first_is_that_of_a_single_one() -> None:
    logits = torch.zeros(12, VOCAB)

    def texts(n: int) -> list[list[int]]:
        return [decode_alone(request(key=request_key(5, choice)), logits)[0] for choice in range(n)]

    sixteen = texts(16)
    assert len({tuple(text) for text in sixteen}) == 16
    assert texts(1)[0] == sixteen[0]
