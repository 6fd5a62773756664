"""What goes into which of MM's registries."""
from mmengine.registry import MODELS

from l2vit_mm.backbones import L2ViT

# The root registry: mmdet, mmseg and mmpretrain all fall back to it.
MODELS.register_module(module=L2ViT)
