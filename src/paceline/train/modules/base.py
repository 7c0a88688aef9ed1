"""The contract between what is trained, what drafters learn from, and a target model in training form."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from paceline.train.modules.layers import RMSNorm


class RolloutState:
    """What a target keeps between the steps of a rollout, for a fixed number of slots.

    Made by `TrainTarget.rollout_state`, read and written by `prefill` and `decode` alone.
    """


class TrainTarget(nn.Module, ABC):
    """A target over whole sequences. Weights are fp32 masters; ``compute`` is the dtype of activations and
    matrix products. Rows of a batch may pack several documents: then nothing crosses from one to another.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int
    max_position: int
    eos_ids: tuple[int, ...]
    tied: bool
    """Whether the output head is the embedding table."""
    norm: RMSNorm
    """The final one."""

    @abstractmethod
    def forward(
        self, ids: Tensor, taps: tuple[int, ...] = (), documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """ids [B, T] int64 -> hidden after the final norm [B, T, H], and the residual stream after each
        tapped (zero-based) layer, concatenated [B, T, len(taps) * H], None without taps.

        documents: [B, T] int, a number that changes where a packed document ends; None: a row is one
        document. Positions for rotation count from the start of the row in either case, because rotation is
        relative.
        """

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the embedding table in the compute dtype, [..., H]."""

    @property
    @abstractmethod
    def head_weight(self) -> Tensor:
        """The output matrix [V, H], in the dtype of the weights."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> fp32 [..., V]."""

    @abstractmethod
    def compile_blocks(self) -> None:
        """Compile `forward` layer by layer for a GPU: a graph or two serve any depth."""

    @abstractmethod
    def compile_decode(self) -> None:
        """Compile `decode` layer by layer for a GPU."""

    @abstractmethod
    def rollout_state(self, slots: int, length: int) -> RolloutState:
        """Room for `slots` sequences of at most `length` positions."""

    @abstractmethod
    def prefill(self, ids: Tensor, lengths: Tensor, slots: Tensor, state: RolloutState) -> None:
        """Read prompts into slots: ids [N, T] padded at the right, lengths [N], slots [N]."""

    @abstractmethod
    def decode(self, ids: Tensor, positions: Tensor, state: RolloutState) -> Tensor:
        """One token a slot: ids [S], positions [S] -> hidden after the final norm [S, H].

        No host synchronisation and no shape that depends on values, so a step can be captured in a graph.
        """
