"""What goes into which of MM's registries."""
from mmengine.registry import MODELS

import l2vit_mm.engine.published  # noqa: F401  (registers its hook)
from l2vit_mm import backbones, necks

# The root registry: mmdet, mmseg and mmpretrain all fall back to it.
for module in (backbones, necks):
    for name in module.__all__:
        MODELS.register_module(module=getattr(module, name))
