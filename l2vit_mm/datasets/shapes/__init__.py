"""The generated data set "shapes", for detection, instance and semantic segmentation.

Each image is a function of (seed, split, index) alone, so a data set is the same however many
images or processes make it. The images have different sizes and aspect ratios. They are written
with COCO instance files and with PNGs in ADE20K's layout that label the same pixels.

Nothing here imports an OpenMMLab package. The classes that read the files are
:class:`l2vit_mm.datasets.shapes_det.ShapesDetDataset` and
:class:`l2vit_mm.datasets.shapes_seg.ShapesSegDataset`.
"""

from l2vit_mm.datasets.shapes.metainfo import CLASSES, PALETTE, SEG_CLASSES, SEG_PALETTE, SPLITS
from l2vit_mm.datasets.shapes.renderer import render
from l2vit_mm.datasets.shapes.visualization import draw_objects
from l2vit_mm.datasets.shapes.writer import generate

__all__ = [
    'CLASSES',
    'PALETTE',
    'SEG_CLASSES',
    'SEG_PALETTE',
    'SPLITS',
    'draw_objects',
    'generate',
    'render',
]
