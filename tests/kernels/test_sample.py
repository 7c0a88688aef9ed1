"""Keyed sampling: the definition of the noise, its distribution, and the native code against it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels import sample
from paceline.kernels.sample import cpu, prompt_key, reference, request_key
from paceline.kernels.sample.reference import mix64

NATIVE: Any = cpu.native()
IMPLEMENTATIONS: list[Any] = [reference] if NATIVE is None else [reference, NATIVE]
each_op = pytest.mark.parametrize("op", IMPLEMENTATIONS, ids=["reference", "native"][: len(IMPLEMENTATIONS)])
needs_native = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")

MASK = 2**64 - 1
POSITION_STEP, TOKEN_STEP = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
NOTHING = float("-inf")


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def signed(x: int) -> int:
    x &= MASK
    return x - 2**64 if x >> 63 else x


def unmix64(x: int) -> int:
    """Inverse of mix64."""
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return x ^ (x >> 30) ^ (x >> 60)


def written_out(key: int, position: int, token: int) -> float:
    row_key = mix64(key + POSITION_STEP * (position + 1))
    x = mix64(row_key + TOKEN_STEP * (token + 1)) >> 32
    return -math.log(-math.log((x + 0.5) / 2**32))


def softmax_draws(logits: Tensor, keys: Tensor, positions: Tensor) -> float:
    """Pearson's statistic of the sampled frequencies against softmax(logits)."""
    ids = sample.gumbel_argmax(logits.expand(keys.shape[0], -1), keys, positions)
    counts = torch.bincount(ids, minlength=logits.shape[0]).double()
    expected = logits.double().softmax(0) * keys.shape[0]
    return float(((counts - expected) ** 2 / expected).sum())


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    # The first outputs of the published generator for seed 0.
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert [mix64(POSITION_STEP * (i + 1)) for i in range(4)] == outputs
    assert all(unmix64(mix64(x)) == x for x in (0, 1, MASK, 0x0123456789ABCDEF))


@each_op
def test_noise_has_known_values(op: Any) -> None:
    """Fixed for ever: a change of these changes every sampled text."""
    noise = op.gumbel_noise(ints(5, -7), ints(0, 1000), 50)
    known = {
        (0, 0): 1.943623423576355,
        (0, 1): 0.8210020065307617,
        (0, 49): 0.6696113348007202,
        (1, 0): 0.2066732496023178,
        (1, 49): -0.3244430422782898,
    }
    for (row, token), value in known.items():
        assert noise[row, token].item() == value
        assert value == pytest.approx(written_out((5, -7)[row], (0, 1000)[row], token), abs=1e-6)


def test_keys_have_known_values_and_differ() -> None:
    assert request_key(0, 0) == 9071725088682436940
    assert request_key(2**63, 1) == 4311959704235375614
    assert prompt_key(0, "a") == -8886935898276862018
    assert prompt_key(0, "") == 6963579166742723343
    keys = {request_key(seed, choice) for seed in range(50) for choice in range(16)}
    ids = ["", "a", "b", "ab", "a\0", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "a" * 100]
    keys |= {prompt_key(seed, name) for seed in range(50) for name in ids}
    assert len(keys) == 50 * (16 + len(ids))
    assert request_key(-1, 0) == request_key(MASK, 0)
    assert all(-(2**63) <= k < 2**63 for k in keys)


@each_op
@pytest.mark.parametrize("x", [0, 2**32 - 1])
def test_uniforms_are_never_0_or_1(op: Any, x: int) -> None:
    """A key made so that id 0 at position 3 draws the smallest or the largest random word."""
    row_key = unmix64(x << 32 | 0xABCDEF) - TOKEN_STEP
    key = signed(unmix64(row_key & MASK) - POSITION_STEP * 4)
    got = op.gumbel_noise(ints(key), ints(3), 1).item()
    assert got == pytest.approx(-math.log(-math.log((x + 0.5) / 2**32)), rel=1e-6)
    assert -3.14 < got < 22.88


def test_frequencies_over_20000_seeds_are_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0])
    keys = ints(*(request_key(seed, 0) for seed in range(20_000)))
    critical = 31.3  # chi-square, 11 degrees of freedom, p = 0.001
    assert softmax_draws(logits, keys, torch.full_like(keys, 17)) < critical
    # One request's positions are as independent as requests are.
    assert softmax_draws(logits, keys[:1].expand(20_000).contiguous(), torch.arange(20_000)) < critical
    # So are two choices of a request, and neighbouring positions: pairs of draws fill 4 x 4 cells evenly.
    flat = torch.zeros(20_000, 4)
    other = ints(*(request_key(seed, 1) for seed in range(20_000)))
    first = sample.gumbel_argmax(flat, keys, torch.full_like(keys, 17))
    for second in (
        sample.gumbel_argmax(flat, other, torch.full_like(keys, 17)),
        sample.gumbel_argmax(flat, keys, torch.full_like(keys, 18)),
    ):
        cells = torch.bincount(first * 4 + second, minlength=16).double()
        assert float(((cells - 1250) ** 2 / 1250).sum()) < 37.7  # 15 degrees of freedom, p = 0.001


@each_op
def test_ties_go_to_the_lowest_id(op: Any) -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, -0.0, 0.0]])
    assert op.greedy(scores).tolist() == [1, 0]
    wide = torch.zeros(2, 40_000)
    wide[0, [777, 20_000, 39_999]] = 1.0
    assert op.greedy(wide).tolist() == [777, 0]
    # With noise a tie needs scores that swallow it: at 1e30 a float's step is far above 23.
    wide[0, [30_000, 39_999]] = 1e30
    keys, positions = ints(1, 2), ints(3, 4)
    assert op.gumbel_argmax(wide, keys, positions)[0] == 30_000


@each_op
def test_minus_infinity_never_wins_and_a_row_of_nothing_gives_0(op: Any) -> None:
    scores = torch.full((3, 300), NOTHING)
    scores[1, 299] = -3.0e38
    scores[2, 7] = -1000.0
    assert op.greedy(scores).tolist() == [0, 299, 7]
    for position in range(20):
        positions = torch.full((3,), position)
        assert op.gumbel_argmax(scores, ints(1, 2, 3), positions).tolist() == [0, 299, 7]


@each_op
def test_a_row_does_not_depend_on_its_company(op: Any) -> None:
    torch.manual_seed(0)
    scores, keys, positions = torch.randn(9, 1000), torch.randint(-(2**63), 2**63 - 1, (9,)), torch.arange(9)
    together = op.gumbel_argmax(scores, keys, positions)
    noise = op.gumbel_noise(keys, positions, 1000)
    for i in range(9):
        row = slice(i, i + 1)
        assert torch.equal(op.gumbel_argmax(scores[row], keys[row], positions[row]), together[row])
        assert torch.equal(op.gumbel_noise(keys[row], positions[row], 1000), noise[row])
    # A row-strided view, as a slice of padded logits is.
    padded = torch.full((9, 1100), 1e9)
    padded[:, :1000] = scores
    assert torch.equal(op.gumbel_argmax(padded[:, :1000], keys, positions), together)
    assert torch.equal(op.greedy(padded[:, :1000]), scores.argmax(-1))


@needs_native
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 15, 16, 17, 100, 513, 17_000, 40_000]),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
    masked=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_native_argmax_is_the_definition(seed: int, vocab: int, scale: float, masked: float) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, vocab, generator=g).mul_(scale).round_(decimals=2)  # rounded: many ties
    scores[torch.rand(3, vocab, generator=g) < masked] = NOTHING
    scores[2] = scores[2].sort().values  # the worst order for skipping
    keys = torch.randint(-(2**63), 2**63 - 1, (3,), generator=g)
    positions = torch.randint(0, 2**40, (3,), generator=g)
    noise = NATIVE.gumbel_noise(keys, positions, vocab)
    assert torch.equal(NATIVE.gumbel_argmax(scores, keys, positions), (scores + noise).argmax(-1))
    assert torch.equal(NATIVE.greedy(scores), scores.argmax(-1))


@needs_native
def test_native_noise_equals_torch_up_to_the_last_bit_of_a_logarithm() -> None:
    keys, positions = torch.randint(-(2**63), 2**63 - 1, (4,)), ints(0, 1, 5000, 2**40)
    ours, theirs = (op.gumbel_noise(keys, positions, 20_000) for op in (NATIVE, reference))
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=1e-12)
    assert (ours != theirs).sum() <= 2


@needs_native
def test_the_package_runs_the_native_code_on_cpu_tensors() -> None:
    scores, keys, positions = torch.randn(2, 100), ints(1, 2), ints(3, 4)
    assert torch.equal(sample.greedy(scores), NATIVE.greedy(scores))
    for got, want in (
        (sample.gumbel_argmax(scores, keys, positions), NATIVE.gumbel_argmax(scores, keys, positions)),
        (sample.gumbel_noise(keys, positions, 100), NATIVE.gumbel_noise(keys, positions, 100)),
    ):
        assert torch.equal(got, want)


def test_leads_are_differences_of_scores() -> None:
    scores = torch.tensor([[[1.0, 4.0, 2.5], [0.0, -1.0, 7.0]]])
    assert sample.lead(scores, ints(1, 2)[None], ints(2, 1)[None]).tolist() == [[1.5, 8.0]]
    assert sample.lead(scores, ints(1, 1)[None], ints(-1, 1)[None])[0, 1] == 0  # of -1 any number may come
