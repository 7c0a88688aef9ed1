"""In bf16 the operators round where transformers' own classes round: equal bits, not only close ones."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, apply_rotary_pos_emb

from paceline.kernels import attention, norm, swiglu
from paceline.kernels.attention import reference as attention_reference
from paceline.kernels.norm import reference as norm_reference
from paceline.kernels.swiglu import reference as swiglu_reference

BF16 = torch.bfloat16


@pytest.mark.parametrize("module", [norm, norm_reference])
@pytest.mark.parametrize("theirs,zero_centred", [(Qwen3_5RMSNorm, True), (Qwen3RMSNorm, False)])
def test_rms_norm(module, theirs, zero_centred):
    layer = theirs(96, eps=1e-6).to(BF16)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(96))
        x = torch.randn(50, 96).to(BF16)
        assert torch.equal(module.rms_norm(x, layer.weight.detach(), 1e-6, zero_centred), layer(x))


@pytest.mark.parametrize("module", [swiglu, swiglu_reference])
def test_swiglu(module):
    gate, up = torch.randn(50, 96).mul(4).to(BF16), torch.randn(50, 96).to(BF16)
    assert torch.equal(module.swiglu(torch.cat([gate, up], -1)), F.silu(gate) * up)


@pytest.mark.parametrize("module", [attention, attention_reference])
def test_norm_rope(module):
    layer = Qwen3_5RMSNorm(64).to(BF16)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(64))
        x, positions = torch.randn(40, 3, 64).to(BF16), torch.randint(0, 30, (40,))
        angles = torch.randn(30, 8)
        cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
        wide = [torch.cat([t, t], -1)[positions] for t in (cos, sin)]
        expected, _ = apply_rotary_pos_emb(layer(x), layer(x), *wide)
        out = module.norm_rope(x, layer.weight.detach(), layer.eps, True, cos, sin, positions)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("module", [attention, attention_reference])
def test_sigmoid_gate(module):
    x, gate = torch.randn(40, 96).to(BF16), torch.randn(40, 3, 32).to(BF16)
    assert torch.equal(module.sigmoid_gate(x, gate), x * torch.sigmoid(gate.reshape(40, 96)))
