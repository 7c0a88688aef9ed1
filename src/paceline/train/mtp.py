"""The multi-token-prediction head and its training with fed-back steps, exactly as it is served.

Row i of step 1 takes (h_i, t_{i+1}) at position i + 1 and predicts t_{i+2}. Step k feeds the normed output
of step k - 1 back with t_{i+k} at position i + k. Its attention sees the step-1 rows up to i (those that
serving commits from the target's hidden states) and its own chain's rows, never step-1 rows of later
positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.train.config import TargetConfig
from paceline.train.layers import Linear, RMSNorm, rope_table
from paceline.train.target import FullBlock, init_weights


class MTPHead(nn.Module):
    """15 tensors; embedding and output table are the target's."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.pre_fc_norm_hidden = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.fc = Linear(2 * c.hidden_size, c.hidden_size)
        self.layers = nn.ModuleList([FullBlock(c)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, zero_centred=True)
        self.rotary, self.theta = c.rotary_dim, c.rope_theta
        init_weights(self, 1)

    def forward(self, hidden: Tensor, embeds: Tensor, steps: int) -> list[Tensor]:
        """Normed outputs [B, R, H] of each step, R = T - steps - 1, from the target's hidden and embeddings
        [B, T, H]."""
        rows = hidden.shape[1] - steps - 1
        block = self.layers[0]
        assert isinstance(block, FullBlock)
        attn = block.self_attn
        prev, outs = hidden[:, :rows], []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for k in range(1, steps + 1):
            e = self.pre_fc_norm_embedding(embeds[:, k : k + rows])
            x = self.fc(torch.cat([e, self.pre_fc_norm_hidden(prev)], -1))
            positions = torch.arange(k, k + rows, device=x.device)
            cos, sin = (t.unsqueeze(1) for t in rope_table(positions, self.rotary, self.theta))
            q, gate, key, value = attn.project(block.input_layernorm(x), cos, sin)
            rep = q.shape[2] // key.shape[2]
            keys.append(key.repeat_interleave(rep, 2))
            values.append(value.repeat_interleave(rep, 2))
            x = x + attn.finish(_chain_attention(q, keys, values), gate)
            x = x + block.mlp(block.post_attention_layernorm(x))
            prev = self.norm(x)
            outs.append(prev)
        return outs


def _chain_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B, R, H, D]; keys[0] are the committed rows (causal), keys[1:] each row's own chain. Returns [B, R,
    H, D]."""
    rows, scale = q.shape[1], q.shape[-1] ** -0.5
    mask = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril()
    first = torch.einsum("bihd,bjhd->bhij", q, keys[0]).float().masked_fill(~mask, float("-inf"))
    own = [(q * k).sum(-1, dtype=torch.float32).transpose(1, 2).unsqueeze(-1) for k in keys[1:]]
    weights = (torch.cat([first, *own], -1) * scale).softmax(-1).to(q.dtype)
    out = torch.einsum("bhij,bjhd->bihd", weights[..., :rows], values[0])
    for n, v in enumerate(values[1:]):
        out = out + weights[..., rows + n].transpose(1, 2).unsqueeze(-1) * v
    return out


def mtp_labels(ids: Tensor, prefix: Tensor, steps: int) -> Tensor:
    """[steps, B, R]: label of (step k, row i) is t_{i+k+1}; -100 where that token belongs to the prefix."""
    rows = ids.shape[1] - steps - 1
    at = torch.arange(rows, device=ids.device)
    labels = []
    for k in range(1, steps + 1):
        label = ids[:, k + 1 : k + 1 + rows]
        labels.append(label.masked_fill(at + k + 1 < prefix.unsqueeze(1), -100))
    return torch.stack(labels)


def mtp_loss(head: MTPHead, hidden: Tensor, embeds: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the steps."""
    outs = head(hidden, embeds, labels.shape[0])
    total = hidden.new_zeros((), dtype=torch.float32)
    for out, label in zip(outs, labels.unbind(0), strict=True):
        logits = F.linear(out, table.to(out.dtype)).float()
        total = total + F.cross_entropy(logits.flatten(0, 1), label.flatten())
    return total / len(outs)
