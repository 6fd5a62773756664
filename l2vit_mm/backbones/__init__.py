"""The backbones: each file of this folder registers its own.

Of MM they know mmengine's BaseModule, its logger and its registry alone.
"""

import importlib
import pkgutil
from typing import Any

from l2vit_mm.backbones.base import BaseBackbone
from l2vit_mm.registry import register_backbone, registered_backbones

__all__ = ['BaseBackbone', 'register_backbone']

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')

_classes = {cls.__name__: cls for cls in registered_backbones().values()}
__all__ += sorted(_classes)


def __getattr__(name: str) -> Any:
    if name in _classes:
        return _classes[name]
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
