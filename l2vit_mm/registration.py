"""What goes into which of MM's registries."""
from mmengine.registry import MODELS

import l2vit_mm.engine.fsdp  # noqa: F401  (registers its policy and strategy)
import l2vit_mm.engine.layer_decay  # noqa: F401  (registers its constructor)
import l2vit_mm.engine.resume  # noqa: F401  (registers its hook, sampler and data set)
import l2vit_mm.engine.strict_load  # noqa: F401  (registers its hook)
from l2vit_mm import backbones, necks
from l2vit_mm.engine import valid_region

# The root registry: mmdet, mmseg and mmpretrain all fall back to it.
for module in (backbones, necks):
    for name in module.__all__:
        MODELS.register_module(module=getattr(module, name))

# Functions, which import their toolbox when they are called.
for function in (valid_region.ValidRegionDetDataPreprocessor,
                 valid_region.ValidRegionSegDataPreProcessor,
                 valid_region.ValidRegionClsDataPreprocessor):
    MODELS.register_module(module=function)
