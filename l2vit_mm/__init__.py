"""Linear-attention vision backbones for the OpenMMLab tools.

Importing this imports nothing else: no torch, no mmengine, no toolbox. As soon as the program
imports mmengine, the backbones, necks, hooks and optimizer constructors are registered there, and
as soon as it imports a toolbox, what extends that toolbox (:mod:`l2vit_mm.registration` lists it).
:mod:`l2vit_mm.ops` and :mod:`l2vit_mm.layers` work without mmengine.
"""

import importlib

from l2vit_mm import registration
from l2vit_mm.version import __version__

__all__ = ['__version__', 'get_model', 'list_models', 'load_backbone']

registration.install()


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module('l2vit_mm.apis.models'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
