"""The training model against transformers' own class, and its parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.train import delta, export
from paceline.train.config import BudgetConfig, TargetConfig
from paceline.train.target import Target

BUDGET = BudgetConfig(seconds=1.0, max_steps=1, batch_size=1)


def tiny(**changes: int) -> TargetConfig:
    sizes: dict[str, int] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "vocab_size": 300,
        **changes,
    }
    return TargetConfig(training=BUDGET, **sizes)  # type: ignore[arg-type]


def random_target(c: TargetConfig) -> Target:
    """Weights far from their initial values, so that every norm and gate matters."""
    torch.manual_seed(0)
    model = Target(c)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(4)
            else:
                p.add_(torch.randn_like(p) * 0.1)
    return model.requires_grad_(False)


def test_logits_equal_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    c = tiny()
    model = random_target(c)
    export.write_json(tmp_path / "config.json", export.target_json(c))
    tensors = {k: v.detach().contiguous() for k, v in export.named(model, "model.").items()}
    save_file(tensors, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, c.vocab_size, (2, 150))
    with torch.no_grad():
        want = reference(ids, output_hidden_states=True)
    hidden, features = model(ids, (0, 2))
    assert type(reference).__name__ == "Qwen3_5ForCausalLM"
    assert (model.logits(hidden) - want.logits).abs().max() < 2e-4
    assert features is not None
    taps = torch.cat([want.hidden_states[1], want.hidden_states[3]], -1)  # the output of layers 0 and 2
    assert (features - taps).abs().max() < 2e-4


def test_cached_steps_equal_the_whole_forward() -> None:
    c = tiny()
    model = random_target(c)
    ids = torch.randint(0, c.vocab_size, (2, 90))
    want, _ = model(ids)
    caches = model.make_caches(2, 90)
    hidden = model.step(ids[:, :70], 0, caches)
    assert (hidden - want[:, 69]).abs().max() < 1e-4
    for at in range(70, 90):
        hidden = model.step(ids[:, at : at + 1], at, caches)
        assert (hidden - want[:, at]).abs().max() < 1e-4


def test_inverse_is_exact_for_repeated_keys() -> None:
    """Equal keys and beta near 1 make A all ones, where a power series loses everything."""
    a = torch.full((1, 64, 64), 0.999).tril(-1)
    error = delta.unit_lower_inverse(a) @ (a + torch.eye(64)) - torch.eye(64)
    assert error.abs().max() < 1e-4


def test_gradients_of_the_chunk_form_equal_those_of_the_recurrence() -> None:
    torch.manual_seed(0)
    rows, hk, hv, dk, dv = 70, 1, 2, 4, 4

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).requires_grad_()

    raw = [
        leaf(1, rows, hk, dk),
        leaf(1, rows, hk, dk),
        leaf(1, rows, hv, dv),
        leaf(1, rows, hv),
        leaf(1, rows, hv),
    ]
    weight = torch.randn(1, rows, hv, dv)

    def inputs() -> list[torch.Tensor]:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in raw[:2])
        return [q, k, raw[2], -torch.nn.functional.softplus(raw[3]), raw[4].sigmoid()]

    out, _ = delta.chunk_gated_delta(*inputs())
    got = torch.autograd.grad((out * weight).sum(), raw)
    q, k, v, g, beta = inputs()
    state, outs = torch.zeros(1, hv, dk, dv), []
    for t in range(rows):
        kt, qt = (x[:, t].repeat_interleave(hv // hk, 1) for x in (k, q))
        state = state * g[:, t].exp()[..., None, None]
        d = (v[:, t] - torch.einsum("bhk,bhkv->bhv", kt, state)) * beta[:, t].unsqueeze(-1)
        state = state + kt.unsqueeze(-1) * d.unsqueeze(-2)
        outs.append(torch.einsum("bhk,bhkv->bhv", qt, state))
    naive = torch.stack(outs, 1)
    assert (out - naive).abs().max() < 1e-4
    want = torch.autograd.grad((naive * weight).sum(), raw)
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() < 1e-3
