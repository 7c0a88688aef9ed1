"""Training of DFlash drafters: anchors, masks, losses, features of the target, export."""
