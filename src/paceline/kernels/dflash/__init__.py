"""A DFlash drafter's passes in one native call each, on the CPU.

They call the very operators of the other folders, so there is no reference here: `models.dflash` composes the
same passes of them, readably, and runs that where this cannot (another device, no compiler, layers that are
not one native product).
"""

from __future__ import annotations

from paceline.kernels.dflash.cpu import (
    BestDrafts,
    Blocks,
    DrafterParts,
    LayerParts,
    NativeDrafter,
    native_drafter,
)

__all__ = ["BestDrafts", "Blocks", "DrafterParts", "LayerParts", "NativeDrafter", "native_drafter"]
