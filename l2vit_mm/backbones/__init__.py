"""The backbones. Of MM they know mmengine's BaseModule and its logger alone."""
from l2vit_mm.backbones.flatten_cswin import FLattenCSWin
from l2vit_mm.backbones.flatten_deit import FLattenDeiT
from l2vit_mm.backbones.flatten_pvt import FLattenPVT, FLattenPVTv2
from l2vit_mm.backbones.flatten_swin import FLattenSwin
from l2vit_mm.backbones.l2vit import L2ViT

__all__ = ['FLattenCSWin', 'FLattenDeiT', 'FLattenPVT', 'FLattenPVTv2', 'FLattenSwin', 'L2ViT']
