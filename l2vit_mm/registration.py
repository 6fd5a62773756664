"""What is registered in MM's registries, and when."""

from l2vit_mm._import_hooks import import_after
from l2vit_mm.compat import supply_mmcv_ops

# Once the module on the left has been imported, that on the right is: all go into mmengine's root
# registries, to which mmdet, mmseg and mmpretrain fall back. What needs a private module of
# mmengine is not among them: see l2vit_mm.engine.strategies.
MODULES = (
    ('mmengine.runner', 'l2vit_mm.compat.mmengine'),
    ('mmengine', 'l2vit_mm.backbones'),
    ('mmengine', 'l2vit_mm.necks'),
    ('mmengine', 'l2vit_mm.engine.hooks'),
    ('mmengine', 'l2vit_mm.engine.optimizers'),
    ('mmengine', 'l2vit_mm.datasets.seeded'),
    ('mmdet.datasets', 'l2vit_mm.datasets.shapes_det'),
    ('mmseg.datasets', 'l2vit_mm.datasets.shapes_seg'),
    ('mmdet.models', 'l2vit_mm.data_preprocessors.det'),
    ('mmseg.models', 'l2vit_mm.data_preprocessors.seg'),
    ('mmpretrain.models', 'l2vit_mm.data_preprocessors.cls'),
)


def install() -> None:
    """Lets MM find what is here. Called by ``import l2vit_mm``."""
    supply_mmcv_ops()
    for theirs, ours in MODULES:
        import_after(theirs, ours)
