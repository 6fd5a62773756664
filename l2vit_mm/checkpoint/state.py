"""State dicts in files of several kinds, and their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from l2vit_mm.checkpoint.names import HEAD


class CheckpointError(RuntimeError):
    """A file that doesn't fit a model, or has no weights; the text is one line for the user."""


def unwrap(checkpoint: Mapping[str, Any], ema: bool = False) -> dict[str, Any]:
    """The state dict in a loaded file.

    Args:
        checkpoint (dict): a state dict, or what holds one as ``state_dict`` (MM), ``model`` or
            ``model_ema`` (published code).
        ema (bool): of the latter two prefer ``model_ema``. (MM's ``state_dict`` is the average
            already, where there is one.)

    Returns:
        dict: name to tensor, without DDP's ``module.``.

    Raises:
        CheckpointError: if there is no tensor in it: only an optimizer's state, for example.
    """
    keys = ('state_dict', 'model_ema', 'model') if ema else ('state_dict', 'model', 'model_ema')
    state = next((checkpoint[key] for key in keys if isinstance(checkpoint.get(key), dict)),
                 checkpoint)
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(
            'checkpoint must hold weights, as state_dict, model, model_ema or at its top level, '
            f'got {", ".join(map(str, state))}')
    return {name.removeprefix('module.'): value for name, value in state.items()}


def backbone_part(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict of a detector, segmentor or classifier in two.

    Returns:
        tuple[dict, dict]: the backbone's, without ``backbone.``, empty if there is none; the rest.
    """
    part = {name.removeprefix('backbone.'): value for name, value in state.items()
            if name.startswith('backbone.')}
    return part, {name: value for name, value in state.items() if not name.startswith('backbone.')}


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """As :func:`backbone_part`, of a published classifier too.

    Its ``head`` is the rest, under mmpretrain's names. A state dict without either is a backbone's.
    """
    part, rest = backbone_part(state)
    if not part:
        part = {name: value for name, value in state.items() if name not in HEAD}
        rest = {HEAD[name]: value for name, value in state.items() if name in HEAD}
    return part, rest


def top_level(names: Iterable[str]) -> list[str]:
    """The parts of a model that names belong to: what is before the first dot."""
    return list(dict.fromkeys(name.split('.')[0] for name in names))


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return [name for name, value in state.items()
            if isinstance(value, Tensor) and not value.isfinite().all()]
