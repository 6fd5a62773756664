"""Modules of ours that wait for a module of somebody else's.

A registered class can only exist where its base class does, and importing ``l2vit_mm`` must not
import a toolbox (or mmengine) that the user's program has no use for.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_after(theirs: str, ours: str) -> None:
    """Imports a module once another one has been imported: now, if it has been already.

    Args:
        theirs (str): module to wait for.
        ours (str): module to import.
    """
    _finder.waiting.setdefault(theirs, []).append(ours)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.import_ready()


class _Finder(MetaPathFinder):
    """Lets the other finders find the modules that are waited for, and wraps their loaders.

    Those of our own modules too: what waits must not be imported in the middle of one, which may
    be what brought in the module that was waited for.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[str]] = {}
        self.depth = 0  # our modules that are being imported

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A module may have been in the middle of its import when it was first waited for.
        self.import_ready()
        if name not in self.waiting and not _is_ours(name):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None

    def import_ready(self, done: str | None = None) -> None:
        """Imports what waits for modules that have been imported to their end.

        Args:
            done (str, optional): a module that has just been.
        """
        if self.depth:
            return
        for theirs in list(self.waiting):
            module = sys.modules.get(theirs)
            initializing = getattr(getattr(module, '__spec__', None), '_initializing', False)
            if module is not None and (theirs == done or not initializing):
                for ours in self.waiting.pop(theirs, ()):
                    importlib.import_module(ours)


class _Loader(Loader):
    """A loader that has the waiting modules imported behind the one that it loads."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        ours = _is_ours(module.__name__)
        _finder.depth += ours
        try:
            self.loader.exec_module(module)
        finally:
            _finder.depth -= ours
        _finder.import_ready(module.__name__)


def _is_ours(name: str) -> bool:
    return name.startswith(f'{__package__}.')


_finder = _Finder()
