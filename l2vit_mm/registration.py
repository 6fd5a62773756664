"""What goes into which of MM's registries."""
from mmengine.registry import MODELS

from l2vit_mm import backbones

# The root registry: mmdet, mmseg and mmpretrain all fall back to it.
for name in backbones.__all__:
    MODELS.register_module(module=getattr(backbones, name))
