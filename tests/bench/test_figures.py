"""What turns runs into figures: rates, identity, acceptance, the report."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.bench import identity, plain, report
from paceline.bench.dflash import EVERYTHING, Figures
from paceline.bench.peers.base import NotMeasured, PeerUnavailable
from paceline.bench.rows import from_repetitions
from paceline.bench.window import KnownDrafts, StepClock


class Clockwork:
    """An engine that takes `prefill` seconds and then `step` seconds a step, by its own account."""

    def __init__(self, name: str, prefill: float, step: float):
        self.name, self.prefill, self.step = name, prefill, step

    def seconds(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        return self.prefill + self.step * max_tokens

    def environment(self) -> dict[str, Any]:
        return {"name": self.name}


def test_a_rate_leaves_the_prompt_out() -> None:
    rate = plain.decode_rate(Clockwork("x", 5.0, 0.01), [[1], [2]])
    assert rate == pytest.approx(200)


def test_nonsense_is_no_rate() -> None:
    with pytest.raises(NotMeasured, match="not quiet"):
        plain.decode_rate(Clockwork("x", 5.0, -0.01), [[1]])


def test_a_row_is_ours_over_the_peers() -> None:
    contest = plain.Contest("n", "N", [[1] * 4] * 4, 1.1)
    row = plain.compare(Clockwork("ours", 9.0, 0.01), Clockwork("peer", 0.0, 0.02), contest, 5, 10**9)
    assert row.value == pytest.approx(2) and row.met is True and row.reps == 5
    assert row.detail["tokens_per_s"]["ours"]["median"] == pytest.approx(400)
    assert row.detail["weights_read_gb_per_s"] == pytest.approx(100)
    assert row.detail["peer"] == {"name": "peer"}


def test_a_peer_that_gives_up_ends_the_row() -> None:
    peer = Clockwork("peer", 0, 1)
    peer.seconds = lambda prompts, max_tokens: (_ for _ in ()).throw(PeerUnavailable("gone"))  # type: ignore[method-assign]
    with pytest.raises(PeerUnavailable, match="gone"):
        plain.compare(Clockwork("ours", 0, 1), peer, plain.Contest("n", "N", [[1]], 1.1), 1)


def test_identity_finds_where_texts_part() -> None:
    tally = identity.Tally("dflash", 16)
    expected = {("a", 0.0, None): [1, 2, 3], ("b", 0.8, 1): [4, 5, 6]}
    identity.compare(tally, {("a", 0.0, None): [1, 2, 3], ("b", 0.8, 1): [4, 9, 6]}, expected)
    assert (tally.compared, tally.tokens, len(tally.divergences)) == (2, 6, 1)
    assert tally.divergences[0] == {
        "method": "dflash", "batch": 16, "prompt": "b", "temperature": 0.8, "seed": 1, "position": 1,
    }  # fmt: skip


def test_identity_sees_a_text_that_ends_early() -> None:
    tally = identity.Tally("mtp", 1)
    identity.compare(tally, {("a", 0.0, None): [1]}, {("a", 0.0, None): [1, 2]})
    assert tally.divergences[0]["position"] == 1


@pytest.mark.parametrize(("accepted", "rejected", "met"), [(3, 2, True), (0, 5, None), (5, 0, None)])
def test_identity_without_accepted_and_rejected_drafts_proves_nothing(
    accepted: int, rejected: int, met: bool | None
) -> None:
    tally = identity.Tally("ngram", 1, compared=4, accepted=accepted, rejected=rejected)
    assert identity._row("i", "I", [tally], {}, identity.WHOLE).met is met
    assert identity._row("i", "I", [tally], {}, identity.WHOLE - 1).met is None, "some prompts were left out"


def test_identity_with_a_proposer_missing_is_not_met() -> None:
    tally = identity.Tally("ngram", 1, compared=4, accepted=1, rejected=1)
    row = identity._row("i", "I", [tally], {"mtp": "no head"}, 4)
    assert row.met is None and row.reason == "mtp: no head"


def output(tokens: int, seconds: float, accepted: list[int], drafts: int) -> Any:
    speculation = {
        "num_drafts": drafts,
        "num_draft_tokens": 4 * drafts,
        "num_accepted_tokens": sum(accepted),
        "accepted_per_position": accepted,
    }
    timing = SimpleNamespace(decode_s=seconds)
    return SimpleNamespace(token_ids=[0] * tokens, timing=timing, speculation=speculation)


def test_figures_pool_over_answers() -> None:
    figures = Figures()
    figures.add("math", output(11, 1.0, [4, 2, 0, 0], 4))
    figures.add("prose", output(31, 1.0, [2, 0, 0, 0], 16))
    assert figures.rate() == pytest.approx(20) and figures.rate("math") == pytest.approx(10)
    assert figures.acceptance_length(EVERYTHING) == pytest.approx(1.4)
    assert figures.acceptance_length("math") == pytest.approx(2.5) and figures.by_position == [6, 2, 0, 0]


def test_known_drafts_are_right_for_a_growing_number_of_tokens() -> None:
    known = KnownDrafts([7, 8, 9, 10, 11], vocab=12)
    request: Any = SimpleNamespace(histories=[[7]], limits=[2])
    drafts = [known.propose(request).tokens for _ in range(4)]
    wanted = [[9, 9], [8, 10], [8, 9], [9, 9]]
    assert [row.tolist()[0] for row in drafts] == wanted and drafts[0].dtype == torch.int64


def test_step_clock_tells_steps_apart() -> None:
    clock = StepClock(steps=[(1, 1.0), (8, 9.0), (1, 3.0), (1, 2.0)])
    assert clock.median(1) == 2.0 and clock.median(8) == 9.0
    with pytest.raises(AssertionError, match="3 rows"):
        clock.median(3)


def test_the_report_shows_every_row() -> None:
    row = from_repetitions("fast", "how fast", [2.0, 3.0, 4.0], 1.5, ">=", {"batch": 1, "ms": {"a": [1.0]}})
    env = {"date": "2026-01-02T03:04:05Z", "cpu": "a chip", "versions": {"torch": "2"}, "settings": {}}
    text = report.markdown([row.to_json(env)])
    assert text.startswith("# CPU figures, 2026-01-02") and "a chip" in text
    assert "| how fast | 3 | >= 1.5 | yes | 2 … 4 | 3 |" in text and "### fast" in text
