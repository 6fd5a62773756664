"""The backbones. Of MM they know ``mmengine.model.BaseModule`` alone."""
from l2vit_mm.backbones.l2vit import L2ViT

__all__ = ['L2ViT']
