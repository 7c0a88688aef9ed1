"""Quantises a folder with nvidia-modelopt's default recipe: `modelopt_oracle.py MODEL OUT IDS.json [off]`.

A program of its own, because importing modelopt patches torch and transformers. `off` is a wildcard of
modules that stay as they are.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path


def main(model: str, out: str, ids: str, off: str | None = None) -> None:
    import modelopt.torch.quantization as mtq
    import torch
    import transformers
    from modelopt.torch.export import export_hf_checkpoint

    config = transformers.AutoConfig.from_pretrained(model)
    loaded = (
        getattr(transformers, config.architectures[0]).from_pretrained(model, dtype=torch.bfloat16).eval()
    )
    recipe = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    if off is not None:
        recipe["quant_cfg"].append({"quantizer_name": off, "enable": False})
    samples = [torch.tensor([sample]) for sample in json.loads(Path(ids).read_text())]

    def forward(module: torch.nn.Module) -> None:
        for sample in samples:
            module(input_ids=sample)

    with torch.inference_mode():
        mtq.quantize(loaded, recipe, forward)
        export_hf_checkpoint(loaded, export_dir=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
