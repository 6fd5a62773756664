"""Memory layouts of the tokens of a batch of images. Only this package knows them."""

from l2vit_mm.layers.layout.base import Layout
from l2vit_mm.layers.layout.dense import DenseLayout
from l2vit_mm.layers.layout.packed import PackedLayout
from l2vit_mm.layers.layout.window import Window

__all__ = ['DenseLayout', 'Layout', 'PackedLayout', 'Window']
