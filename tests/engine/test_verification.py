"""The comparison behind `paceline verify`: first differences, scores, and the tolerance."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.results import CompletionOutput, RequestOutput, SpeculationStats, Timing, Usage
from paceline.engine.verification import Plan, Verification, compare, first_difference, score_row
from paceline.kernels.sample import gumbel_argmax, request_key

VOCAB = 32


def output(token_ids, *, seed=3, prompt=(1, 2), drafted=2, accepted=1):
    stats = SpeculationStats("ngram", 4)
    stats.record(drafted, accepted, accepted + 1)
    usage, timing = Usage(len(prompt), len(token_ids)), Timing(0, 1, None)
    choice = CompletionOutput(0, "", list(token_ids), "length", None, usage, stats, timing, None)
    return RequestOutput("p", list(prompt), seed, [choice])


def judged(plain, found, logits, *, temperature=0.0, deterministic=False, seen=None):
    """The verification of one completion against one other, with the given last row of logits."""

    def teacher_forced(ids):
        if seen is not None:
            seen.append(ids)
        return torch.stack([torch.full((VOCAB,), float("nan"))] * (len(ids) - 1) + [logits])

    return compare(
        Plan(seeds=1, temperature=temperature, max_tokens=8),
        [[output(plain)]],
        [[output(found)]],
        deterministic=deterministic,
        teacher_forced=teacher_forced,
    )


@pytest.mark.parametrize(
    ("a", "b", "where"),
    [
        ([], [], None),
        ([1], [1], None),
        ([1, 2], [1, 3], 1),
        ([1, 2], [1], 1),
        ([1], [1, 2], 1),
        ([4], [5], 0),
    ],
)
def test_first_difference(a, b, where):
    assert first_difference(a, b) == where


def test_no_referee_is_asked_where_texts_are_equal():
    seen = []
    assert judged([5, 6], [5, 6], torch.zeros(VOCAB), seen=seen).exit_code == 0
    assert seen == []


def test_the_common_history_is_scored():
    seen = []
    judged([5, 6, 7], [5, 8, 7], torch.zeros(VOCAB), seen=seen)
    assert seen == [[1, 2, 5]]


@pytest.mark.parametrize(("gap", "passes"), [(2.0**-6 * 8, True), (2.0**-6 * 8 * 1.01, False)])
def test_greedy_tolerance_is_a_share_of_the_largest_logit(gap, passes):
    logits = torch.zeros(VOCAB)
    logits[0], logits[6], logits[8] = -8.0, 1.0, 1.0 - gap
    result = judged([5, 6], [5, 8], logits)
    (divergence,) = result.divergences
    assert divergence.tokens == (6, 8) and divergence.scores == pytest.approx((1.0, 1.0 - gap))
    assert divergence.within_tolerance is passes and result.exit_code == (0 if passes else 1)


def test_a_tie_excuses_nothing_in_deterministic_mode():
    assert judged([5, 6], [5, 8], torch.zeros(VOCAB), deterministic=True).exit_code == 1


def test_an_early_end_is_a_divergence_without_scores():
    result = judged([5, 6], [5], torch.zeros(VOCAB))
    (divergence,) = result.divergences
    assert (divergence.tokens, divergence.scores, result.exit_code) == ((6, None), None, 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_scores_are_what_the_sampler_takes_the_argmax_of(temperature):
    logits, key, position = torch.randn(VOCAB), request_key(3, 0), 41
    sampled = gumbel_argmax((logits / temperature)[None], torch.tensor([key]), torch.tensor([position]))
    assert int(score_row(logits, temperature, key, position).argmax()) == int(sampled)


def test_hot_sampling_narrows_the_tolerance():
    logits = torch.zeros(VOCAB)
    logits[0] = -64.0
    key = request_key(3, 0)
    scores = score_row(logits, 4.0, key, 3)
    other = min((t for t in range(1, VOCAB) if t != 6), key=lambda t: abs(float(scores[t] - scores[6]) - 0.5))
    logits[other] += 4.0 * float(scores[6] - scores[other] - 0.3)  # now 0.3 apart; 2^-6 * 64 / 4 = 0.25
    (divergence,) = judged([5, 6], [5, other], logits, temperature=4.0).divergences
    assert divergence.scores is not None
    assert abs(divergence.scores[0] - divergence.scores[1]) == pytest.approx(0.3, abs=1e-4)
    assert divergence.within_tolerance is False


def test_windows_and_counts_add_up():
    result = Verification(1, 1, "deterministic")
    for accepted in (0, 1, 2):
        result.count(output([1], accepted=accepted))
    assert result.windows == {"full": 1, "partial": 1, "none": 1}
    assert (result.num_drafts, result.num_draft_tokens, result.num_accepted_tokens) == (3, 6, 3)
    assert result.proven and result.exit_code == 0
