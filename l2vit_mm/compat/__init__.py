"""Compatibility with the supported versions of torch, mmcv and mmengine: see docs/compat.md."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os.path
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ['mmcv_ext_file', 'supply_mmcv_ops']

_TOOLBOXES = ('mmdet.', 'mmseg.', 'mmpretrain.')
# How the toolboxes import optional operators: inside a try block.
_GUARDED_IMPORT = re.compile(r'^try:\n(?:    .*\n)*?    from mmcv\.ops', re.MULTILINE)


def supply_mmcv_ops() -> None:
    """Supplies mmcv's compiled operators if the installed mmcv has none.

    ``import l2vit_mm`` calls it; it imports nothing, and a second call changes nothing.

    Raises:
        RuntimeError: if a toolbox has been imported before and works without mmcv's operators since
            then. (Not an ImportError, as mmengine hides its text when ``custom_imports`` fails.)
    """
    mmcv = importlib.util.find_spec('mmcv')
    if mmcv is not None and mmcv_ext_file(mmcv) is None and _ops_finder not in sys.meta_path:
        _check_not_late()
        sys.meta_path.append(_ops_finder)


def mmcv_ext_file(mmcv: ModuleSpec) -> str | None:
    """Path of the installed ``mmcv._ext``, without importing it, or None if there is none."""
    spec = PathFinder.find_spec('mmcv._ext', mmcv.submodule_search_locations)
    return None if spec is None else spec.origin


class _OpsFinder(importlib.abc.MetaPathFinder):
    """Finds ``mmcv._ext`` in mmcv_ops/; asked last, so that a compiled one takes precedence.

    A finder, not an entry in ``sys.modules``: torchvision is imported only when mmcv's operators
    are, and whoever checks whether mmcv has operators finds them.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != 'mmcv._ext':
            return None
        file = os.path.join(os.path.dirname(__file__), 'mmcv_ops', '__init__.py')
        return importlib.util.spec_from_file_location(name, file)


_ops_finder = _OpsFinder()


def _check_not_late() -> None:
    """Raises if a module of a toolbox has tried to import mmcv's operators and works without."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, '__file__', None)
        if not name.startswith(_TOOLBOXES) or not path:
            continue  # not of a toolbox, or a namespace package
        with open(path, encoding='utf-8') as file:
            if _GUARDED_IMPORT.search(file.read()):
                raise RuntimeError(
                    f'mmcv has no compiled operators, and {name} was imported before l2vit_mm '
                    'could supply them: import l2vit_mm first, or, for tools that you cannot '
                    'change, run once: python -m l2vit_mm.compat install'
                )
