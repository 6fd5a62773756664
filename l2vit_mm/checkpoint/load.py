"""Loading of backbones' state dicts, with published names or ours, of any image size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from l2vit_mm.checkpoint.report import LoadReport
from l2vit_mm.checkpoint.state import backbone_part, top_level, unwrap
from l2vit_mm.layers import ResizedTable
from l2vit_mm.registry import find_model, registered_backbones

if TYPE_CHECKING:
    from l2vit_mm.backbones.base import BaseBackbone


def adapt(backbone: BaseBackbone, state: Mapping[str, Any]) -> tuple[dict[str, Any], LoadReport]:
    """Converts a state dict, with our names or the published ones, to one of a backbone.

    A classifier has no output norms for the earlier stages: these keep their initial values. Stages
    that the backbone has not built, because their maps are not returned, are skipped.

    Args:
        backbone (BaseBackbone): the backbone.
        state (dict): names, without prefix, to tensors.

    Returns:
        tuple[dict, LoadReport]: the state dict with our names and resized tables, without what is
        skipped (what doesn't fit is left in it unchanged), and the report.
    """
    own = backbone.state_dict()
    tables = {
        f'{name}.table': module
        for name, module in backbone.named_modules()
        if isinstance(module, ResizedTable)
    }
    adapted: dict[str, Any] = {}
    report = LoadReport()
    for key, value in state.items():
        name = backbone.published_names.ours(key)
        if name is None or (name not in own and backbone.may_lack(name)):
            report.skipped.append(key)
            continue
        if name in tables:
            fitted = tables[name].fit(value)
            if fitted.numel() != value.numel():
                report.resized.append(name)
            value = fitted
        # Published parameters can have further axes of length 1.
        elif name in own and value.squeeze().shape == own[name].squeeze().shape:
            value = value.reshape(own[name].shape)
        adapted[name] = value
    report.initialized = [
        name for name in own if backbone.is_output_norm(name) and name not in adapted
    ]
    adapted.update((name, own[name]) for name in report.initialized)
    return adapted, report.compare(adapted, own)


def check_and_log(
    backbone: BaseBackbone,
    state: Mapping[str, Any],
    adapted: Mapping[str, Any],
    report: LoadReport,
    name: str | None = None,
) -> None:
    """Logs the report of :func:`adapt`.

    Args:
        backbone (BaseBackbone): the backbone.
        state (dict): what :func:`adapt` was given.
        adapted (dict): the state dict that it returned.
        report (LoadReport): its report.
        name (str, optional): the backbone's name in the log. None: the name of its class.

    Raises:
        CheckpointError: if the state dict doesn't fit; it says which architecture it looks like.
    """
    guess = looks_like(state) if report.misfit else ''
    hint = f'it looks like {guess}; ' if guess else ''
    report.check_and_log(name or type(backbone).__name__, adapted, hint)


def adapt_before_loading(
    backbone: nn.Module, state_dict: dict[str, Any], prefix: str, *args: object
) -> None:
    """Calls :func:`adapt` in place: the load_state_dict pre-hook of a backbone.

    torch's and mmengine's loaders both call it before they load the backbone's children.

    Args:
        backbone (nn.Module): the backbone.
        state_dict (dict): names to tensors; those that begin with ``prefix`` are replaced.
        prefix (str): what precedes the backbone's names.
        args: further arguments of the hook, not used.
    """
    names = [name for name in state_dict if name.startswith(prefix)]
    state = {name[len(prefix) :]: state_dict.pop(name) for name in names}
    adapted, _ = adapt(backbone, state)  # type: ignore[arg-type]
    state_dict.update((prefix + name, value) for name, value in adapted.items())


def load_pretrained(
    backbone: BaseBackbone,
    file: str | os.PathLike,
    map_location: str | torch.device = 'cpu',
    prefix: str | None = None,
) -> LoadReport:
    """Loads a file into a backbone strictly, and logs what became of its tensors.

    Args:
        backbone (BaseBackbone): the backbone.
        file (str | os.PathLike): path or URL of a published file, of a file converted from it, or
            of the checkpoint of a detector, segmentor or classifier with such a backbone.
        map_location (str | torch.device): as in ``torch.load``.
        prefix (str, optional): what precedes the backbone's names in the file. None:
            ``'backbone.'`` if there are such names, else nothing.

    Returns:
        LoadReport: what became of the tensors.

    Raises:
        CheckpointError: if a parameter is missing (output norms may be), unexpected or of another
            shape; it lists them, and says which architecture the file looks like.
        FileNotFoundError: if the file does not exist.
        pickle.UnpicklingError: if the file is damaged, or holds more than weights.
    """
    from mmengine.runner import CheckpointLoader

    checkpoint = CheckpointLoader.load_checkpoint(os.fspath(file), map_location, 'current')
    state = unwrap(checkpoint)
    if prefix is not None:
        prefix = prefix.removesuffix('.') + '.'
        part = {
            name.removeprefix(prefix): value
            for name, value in state.items()
            if name.startswith(prefix)
        }
        rest = {name: value for name, value in state.items() if not name.startswith(prefix)}
    else:
        part, rest = backbone_part(state)
        if not part:
            part, rest = state, {}
    adapted, report = adapt(backbone, part)
    report.skipped += top_level(rest)
    check_and_log(backbone, part, adapted, report)
    backbone.load_state_dict(adapted)
    return report


def load_backbone(file: str | os.PathLike, name: str, **kwargs: Any) -> BaseBackbone:
    """Builds a backbone and loads the weights of a file.

    Args:
        file (str | os.PathLike): as for :func:`load_pretrained`.
        name (str): one of :func:`~l2vit_mm.list_models`.
        kwargs: arguments of the backbone's class.

    Returns:
        BaseBackbone: the backbone, in training mode.

    Raises:
        ValueError: if there is no model of that name.
        CheckpointError, FileNotFoundError, pickle.UnpicklingError: see :func:`load_pretrained`.
    """
    cls, arch = find_model(name)
    backbone = cls(arch, **kwargs)
    load_pretrained(backbone, file)
    return backbone


def candidates(state: Mapping[str, Any]) -> list[str]:
    """The models that a backbone's state dict looks like, by its names and numbers of elements.

    Args:
        state (dict): names, published or ours, to tensors.

    Returns:
        list[str]: names of :func:`~l2vit_mm.list_models` with the best match: several if they match
        equally well, none if no more than half of the names match.
    """
    scores: dict[str, float] = {}
    for prefix, cls in registered_backbones().items():
        names = {
            cls.published_names.ours(name): value
            for name, value in state.items()
            if isinstance(value, Tensor)
        }
        names.pop(None, None)
        for arch in cls.arch_zoo:
            own = _numels(prefix, arch)
            agree = sum(own.get(name) == value.numel() for name, value in names.items())
            scores[f'{prefix}-{arch}'] = agree / max(len(own), len(names), 1)
    best = max(scores.values())
    return [name for name, score in scores.items() if score == best > 0.5]


def looks_like(state: Mapping[str, Any]) -> str:
    """:func:`candidates` as text, joined by "or"; empty if there is none."""
    return ' or '.join(candidates(state))


@cache
def _numels(name: str, arch: str) -> dict[str | None, int]:
    cls = registered_backbones()[name]
    with torch.device('meta'):
        return {name: value.numel() for name, value in cls(arch).state_dict().items()}
