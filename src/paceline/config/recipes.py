"""Flags of published `vllm serve` recipes that are not paceline's own: what each one means here.

Every flag has an effect, or is answered by one line that says why it has none, or is refused with the
nearest thing that works. None is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from paceline.config.base import StrictModel
from paceline.errors import ConfigError

KV_DTYPES = ("auto", "bfloat16", "float32")

ENVIRONMENT = {
    "VLLM_NVFP4_GEMM_BACKEND": "products are paceline's own operators (--plan lists them)",
    "VLLM_USE_FLASHINFER_MOE_FP4": "dense models only: there are no experts to multiply",
    "VLLM_USE_FLASHINFER_SAMPLER": "sampling is paceline's own, keyed by seed and position",
}
"""Environment variables of the recipes, and what this engine does instead."""

_TEXT_ONLY = "no effect: models are served as text, and image parts of a message are refused"


class RecipeFlags(StrictModel):
    """Flags of `vllm serve`, by vLLM's names."""

    mamba_cache_dtype: str = Field("auto", description="auto or float32: the recurrent state is float32.")
    mamba_ssm_cache_dtype: str = Field("auto", description="As --mamba-cache-dtype.")
    kv_cache_dtype: str = Field("auto", description="How KV is stored: auto, bfloat16 or float32.")
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the GPU's memory that weights and cache may take; no effect on the CPU.",
    )
    enable_chunked_prefill: bool = Field(True, description="Always on: prompts are read beside running ones.")
    enable_prefix_caching: bool = Field(
        True,
        description="Reuse the KV and the recurrent state of what was read before and, outside deterministic "
        "mode, of what was written.",
    )
    trust_remote_code: bool = Field(False, description="No effect: no model needs code of its own.")
    tensor_parallel_size: int = Field(1, ge=1, description="1: one device runs the model.")
    load_format: str = Field("auto", description="auto or safetensors; pickles can run code.")
    attention_backend: str | None = Field(None, description="No effect: attention is paceline's own.")
    limit_mm_per_prompt: dict[str, Any] | None = Field(None, description="No effect: text only.")
    mm_encoder_tp_mode: Literal["weights", "data"] | None = Field(None, description="No effect: text only.")
    mm_processor_cache_type: Literal["lru", "shm"] | None = Field(None, description="No effect: text only.")
    mm_shm_cache_max_object_size_mb: int | None = Field(None, ge=1, description="No effect: text only.")

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        for key in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
            self._one_of(key, ("auto", "float32"), "below float32 the text would depend on the drafts")
        self._one_of("kv_cache_dtype", KV_DTYPES, "KV is stored as the model computes, or as named")
        self._one_of("load_format", ("auto", "safetensors"), "only safetensors files are read")
        if self.tensor_parallel_size > 1:
            raise ConfigError(
                f"--tensor-parallel-size {self.tensor_parallel_size}: one device runs the model; "
                "leave the flag out, and start one server a device",
                key="tensor_parallel_size",
            )
        if not self.enable_chunked_prefill:
            raise ConfigError(
                "--no-enable-chunked-prefill: prompts are always read in chunks; "
                "a large --max-num-batched-tokens makes the chunks large",
                key="enable_chunked_prefill",
            )
        return self

    def _one_of(self, key: str, allowed: tuple[str, ...], why: str) -> None:
        value = getattr(self, key)
        if value not in allowed:
            flag = "--" + key.replace("_", "-")
            raise ConfigError(f"{flag} {value}: {why}; use {' or '.join(allowed)}", key=key)

    def notes(self, device: str) -> Iterator[str]:
        """One line for each flag that was given and has no effect on `device` ("cpu" or "cuda")."""
        texts = {
            "trust_remote_code": "never needed: supported models run without code of their own",
            "attention_backend": "no effect: attention is paceline's own (--plan lists the operators)",
        }
        if device == "cpu":
            texts["gpu_memory_utilization"] = "no effect on the CPU: the cache takes its need, up to half"
        texts |= {key: _TEXT_ONLY for key in type(self).model_fields if key.startswith(("mm_", "limit_mm"))}
        for key, text in texts.items():
            if key in self.model_fields_set and getattr(self, key) not in (None, False):
                yield f"--{key.replace('_', '-')}: {text}"


def environment_notes(environment: Mapping[str, str]) -> Iterator[str]:
    """One line for each of the recipes' environment variables that is set."""
    for name, instead in ENVIRONMENT.items():
        if name in environment:
            yield f"{name} is vLLM's and has no effect: {instead}"
