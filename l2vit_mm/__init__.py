"""Linear-attention vision backbones for the OpenMMLab tools.

Importing this registers the backbones in mmengine's root registry and lets mmcv and mmengine work
on current torch (see :mod:`l2vit_mm.compat`). Without mmengine, :mod:`l2vit_mm.ops` and
:mod:`l2vit_mm.layers` still import.
"""
from importlib.util import find_spec

from l2vit_mm.version import __version__

__all__ = ['__version__']

if find_spec('mmengine'):
    from l2vit_mm import compat, registration  # noqa: F401
    from l2vit_mm.backbones.zoo import list_models, load_backbone
    from l2vit_mm.engine.models import get_model
    compat.prepare()
    __all__ += ['get_model', 'list_models', 'load_backbone']
