"""The backbones by name: whatever the decorator of their classes has registered."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mmengine.registry import MODELS

if TYPE_CHECKING:
    from torch import nn

    from l2vit_mm.backbones.base import BaseBackbone
    from l2vit_mm.checkpoint.names import NameTable


class BackboneClass(Protocol):
    """A registered class: a subclass of BaseBackbone, made from an architecture."""

    __name__: str
    arch_zoo: dict[str, dict[str, Any]]
    test_arch: str | dict[str, Any]
    block_types: tuple[type[nn.Module], ...]
    published_names: NameTable

    def __call__(self, arch: str | dict[str, Any], **kwargs: Any) -> BaseBackbone:
        """A backbone.

        Args:
            arch (str | dict): a name in ``arch_zoo``, or a dict with the same keys.
            kwargs: further arguments of the class.
        """


Class = TypeVar('Class', bound=type)

_backbones: dict[str, BackboneClass] = {}


def register_backbone(name: str, *, test_arch: str | dict[str, Any]) -> Callable[[Class], Class]:
    """Registers a backbone's class: the one thing that makes it known, everywhere.

    MM builds it by the name of its class, :func:`list_models` and ``get_model`` have
    ``NAME-ARCH`` for each of its ``arch_zoo``, FSDP shards it by its ``block_types``, and the tests
    that all backbones share run it.

    Args:
        name (str): in lower case, with hyphens: ``'flatten-pvt-v2'``.
        test_arch (str | dict): an architecture that runs in no time, for the tests.

    Raises:
        ValueError: if there is a backbone of that name.

    Example:
        >>> from l2vit_mm.backbones import BaseBackbone, register_backbone
        >>> @register_backbone('my-net', test_arch='tiny')
        ... class MyNet(BaseBackbone):
        ...     arch_zoo = {'tiny': dict(channels=(32, 64), depths=(1, 1), num_heads=(1, 2))}
    """

    def register(cls: Class) -> Class:
        if name in _backbones:
            raise ValueError(
                f'name must be a new one, got {name!r}, which is registered for '
                f'{_backbones[name].__name__}'
            )
        # mmengine's root registry: mmdet, mmseg and mmpretrain all fall back to it.
        MODELS.register_module(module=cls)
        cls.test_arch = test_arch  # type: ignore[attr-defined]
        _backbones[name] = cls  # type: ignore[assignment]
        return cls

    return register


def registered_backbones() -> Mapping[str, BackboneClass]:
    """The classes by their registered names, those of this package and of others."""
    importlib.import_module('l2vit_mm.backbones')
    return _backbones


def list_models() -> list[str]:
    """The names that ``get_model`` and ``load_backbone`` know: a family's and an architecture's.

    Example:
        >>> from l2vit_mm import list_models
        >>> 'flatten-swin-base-384' in list_models()
        True
    """
    return [
        f'{name}-{arch}' for name, cls in registered_backbones().items() for arch in cls.arch_zoo
    ]


def find_model(name: str) -> tuple[BackboneClass, str]:
    """The class and architecture of one of :func:`list_models`.

    Raises:
        ValueError: if there is no such model.
    """
    for prefix, cls in registered_backbones().items():
        arch = name.removeprefix(f'{prefix}-')
        if name.startswith(f'{prefix}-') and arch in cls.arch_zoo:
            return cls, arch
    raise ValueError(f'name must be one of {", ".join(list_models())}, got {name!r}')
