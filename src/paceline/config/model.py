"""Which model runs, on what, in which arithmetic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from paceline.config.base import StrictModel

Dtype = Literal["auto", "bfloat16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["auto", "none", "modelopt", "modelopt_fp4", "compressed-tensors"]
QuantizedWeights = Literal["dequantized", "packed"]


class ModelConfig(StrictModel):
    """The target model and where it runs."""

    model: str = Field(
        description="A local folder in Hugging Face layout, a hub id, or `demo` for the embedded model."
    )
    dtype: Dtype = Field("auto", description="Arithmetic of the weights; auto: as stored in the checkpoint.")
    device: Device = Field("auto", description="Where to run; auto: cuda where there is a device, else cpu.")
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Most tokens of prompt and completion together; absent: the model's own.",
    )
    quantization: Quantization = Field(
        "auto",
        description="How the checkpoint is quantised; auto: as it says itself. Refused if it is otherwise; "
        "modelopt_fp4 is modelopt.",
    )
    quantized_weights: QuantizedWeights = Field(
        "dequantized",
        description="What 4-bit weights become at load, drafter and head included: plain weights, or packed: "
        "they stay in 4 bits (a quarter of the memory and the same text; CPUs with AVX-512, bfloat16).",
    )

    @field_validator("model")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("model is empty: name a local folder, a hub id, or 'demo'")
        return value
