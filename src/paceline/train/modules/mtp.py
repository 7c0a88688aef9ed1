"""The multi-token head of a hybrid target in training form, fed back as it is at serving.

Serving keeps a row of (h_{s-1}, t_s) at every position s >= 1; it predicts t_{s+1}. From an anchor s, the
newest token, guess k >= 2 runs the row of (output of guess k - 1, t_{s+k-1}) at position s + k - 1: it sees
the committed rows up to s and the chain's own rows before it. Only the head's keys and values are needed at
all positions; queries and the feed-forward run at anchors alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.layers.rotary import inverse_frequencies
from paceline.models.spec import MTPSpec, TargetSpec
from paceline.train.modules.drafter import init_draft_weights
from paceline.train.modules.layers import MLP, Linear, RMSNorm, Rope, attend, rotate


class HeadAttention(nn.Module):
    """qwen3_5 gated attention: per head [query | gate] rows in q_proj, zero-centred norms, partial rotation,
    sigmoid gate."""

    def __init__(self, spec: MTPSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = spec.num_heads, spec.kv_heads, spec.head_dim
        self.q_proj = Linear(spec.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(spec.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(spec.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, spec.hidden_size)
        self.q_norm = RMSNorm(self.dim, spec.rms_eps, zero_centred=True)
        self.k_norm = RMSNorm(self.dim, spec.rms_eps, zero_centred=True)

    def keys(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Keys and values [B, T, Hkv, D] of normed rows x [B, T, H]; rope [B, T, 1, r / 2]."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim)))
        return rotate(k, *rope), self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))

    def forward(self, x: Tensor, rope: Rope, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Normed rows x [B, N, H] over keys and values [B, K, Hkv, D], mask [B, 1, N, K] -> [B, N, H]."""
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2 * self.dim)).chunk(2, -1)
        # Of torch's kernels, the one that takes a mask without holding all scores takes no grouped keys.
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 2) for t in (k, v))
        seen = attend(rotate(self.q_norm(q), *rope), k, v, mask)
        y: Tensor = self.o_proj((seen * gate.sigmoid()).flatten(-2))
        return y


class HeadLayer(nn.Module):
    """The head's one decoder layer."""

    def __init__(self, spec: MTPSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=True)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=True)
        self.self_attn = HeadAttention(spec)
        self.mlp = MLP(spec.hidden_size, spec.intermediate_size)

    def forward(self, x: Tensor, rope: Rope, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Rows x [B, N, H], whose own keys stand in k -> the next x."""
        x = x + self.self_attn(self.input_layernorm(x), rope, k, v, mask)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class MTPHead(nn.Module):
    """15 tensors with random weights; embedding and output matrix are the target's and stay outside."""

    def __init__(self, spec: MTPSpec) -> None:
        super().__init__()
        self.spec = spec
        self.pre_fc_norm_embedding = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=True)
        self.pre_fc_norm_hidden = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=True)
        self.fc = Linear(2 * spec.hidden_size, spec.hidden_size)
        self.layers = nn.ModuleList([HeadLayer(spec)])
        self.norm = RMSNorm(spec.hidden_size, spec.rms_eps, zero_centred=True)
        self._rope_scale = 1.0 if spec.rope.yarn is None else spec.rope.yarn.table_scale
        self.frequencies: Tensor
        self.register_buffer("frequencies", inverse_frequencies(spec.rope), persistent=False)
        init_draft_weights(self, 1)

    def forward(
        self, hidden: Tensor, embeds: Tensor, chain: Tensor, anchors: Tensor, positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Guesses from N anchors a row, fed back K - 1 times -> normed outputs [B, N, K, H].

        hidden [B, T, H]: the target's, of each position; embeds [B, T, H]: of each token; chain
        [B, N, K - 1, H]: of the true tokens after each anchor; anchors [B, N]: index within the row, >= 1;
        positions [B, T]: within the document; mask [B, N, T]: committed rows that an anchor sees, its own
        included.
        """
        layer = self.layers[0]
        assert isinstance(layer, HeadLayer)
        before = torch.cat([hidden[:, :1], hidden[:, :-1]], 1)  # row 0 has no predecessor; nothing sees it
        rows = self._join(embeds, before)
        keys, values = layer.self_attn.keys(layer.input_layernorm(rows), self._rope(positions))
        here = positions.gather(1, anchors)
        x = rows.gather(1, anchors.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
        own = torch.eye(anchors.shape[1], dtype=torch.bool, device=mask.device).expand(mask.shape[0], -1, -1)
        outs: list[Tensor] = []
        for k in range(chain.shape[2] + 1):
            rope = self._rope(here + k)
            if k:
                x = self._join(chain[:, :, k - 1], outs[-1])
                more = layer.self_attn.keys(layer.input_layernorm(x), rope)
                keys, values = torch.cat([keys, more[0]], 1), torch.cat([values, more[1]], 1)
                mask = torch.cat([mask, own], -1)
            outs.append(self.norm(layer(x, rope, keys, values, mask.unsqueeze(1))))
        return torch.stack(outs, 2)

    def _join(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        y: Tensor = self.fc(
            torch.cat([self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)], -1)
        )
        return y

    def _rope(self, positions: Tensor) -> Rope:
        angle = positions.float().unsqueeze(-1) * self.frequencies
        return (angle.cos() * self._rope_scale).unsqueeze(2), (angle.sin() * self._rope_scale).unsqueeze(2)


def head_spec(target: TargetSpec) -> MTPSpec:
    """The head's numbers follow from its target's."""
    return MTPSpec(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        rope=target.rope,
        max_position=target.max_position,
        rms_eps=target.rms_eps,
        dtype=target.dtype,
    )
