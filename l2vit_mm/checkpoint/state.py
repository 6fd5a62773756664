"""Finds state dicts in loaded files, and splits them into parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from l2vit_mm.checkpoint.names import HEAD


class CheckpointError(RuntimeError):
    """A file does not fit a model, or has no weights; the message is one line."""


def unwrap(checkpoint: Mapping[str, Any], ema: bool = False) -> dict[str, Any]:
    """The state dict in a loaded file.

    Args:
        checkpoint (dict): a state dict, or a dict that has one as ``state_dict`` (MM), ``model`` or
            ``model_ema`` (published code).
        ema (bool): prefer ``model_ema`` to ``model``. (MM's ``state_dict`` is the average already,
            if the run kept one.)

    Returns:
        dict: names, without the prefix ``module.`` of DDP, to tensors.

    Raises:
        CheckpointError: if it holds no tensors, for example only the state of an optimizer.
    """
    keys = ('state_dict', 'model_ema', 'model') if ema else ('state_dict', 'model', 'model_ema')
    state = next(
        (checkpoint[key] for key in keys if isinstance(checkpoint.get(key), dict)), checkpoint
    )
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(
            'checkpoint must hold weights, as state_dict, model, model_ema or at its top level, '
            f'got {", ".join(map(str, state))}'
        )
    return {name.removeprefix('module.'): value for name, value in state.items()}


def backbone_part(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the state dict of a detector, segmentor or classifier.

    Returns:
        tuple[dict, dict]: that of the backbone, without the prefix ``backbone.`` (empty if there is
        none), and the rest.
    """
    part = {
        name.removeprefix('backbone.'): value
        for name, value in state.items()
        if name.startswith('backbone.')
    }
    return part, {name: value for name, value in state.items() if not name.startswith('backbone.')}


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """As :func:`backbone_part`, but for published classifiers and backbones too.

    The rest of a published classifier is its head, renamed as in mmpretrain; a backbone has none.
    """
    part, rest = backbone_part(state)
    if not part:
        part = {name: value for name, value in state.items() if name not in HEAD}
        rest = {HEAD[name]: value for name, value in state.items() if name in HEAD}
    return part, rest


def top_level(names: Iterable[str]) -> list[str]:
    """The distinct parts of a model that names belong to: what precedes the first dot."""
    return list(dict.fromkeys(name.split('.')[0] for name in names))


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """The names of tensors with NaN or infinity."""
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and not value.isfinite().all()
    ]
