"""Conversion of checkpoints between published names and ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from l2vit_mm.checkpoint.load import adapt, candidates, check_and_log
from l2vit_mm.checkpoint.names import HEAD, KEPT
from l2vit_mm.checkpoint.safe_load import load
from l2vit_mm.checkpoint.save import save
from l2vit_mm.checkpoint.state import split, top_level, unwrap
from l2vit_mm.registry import find_model

if TYPE_CHECKING:
    from l2vit_mm.backbones.base import BaseBackbone

TASKS = ('backbone', 'classifier', 'detector')


def to_published(backbone: BaseBackbone, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`~l2vit_mm.checkpoint.adapt`, with the further tensors of published
    files.

    Args:
        backbone (BaseBackbone): the backbone.
        state (dict): its state dict, with or without output norms.

    Returns:
        dict: the published names to tensors in the published shapes.
    """
    norms = {name.split('.')[0] for name in state if backbone.is_output_norm(name)}
    published = backbone.published_only()
    for name, value in state.items():
        # A classifier's single norm has another name than the output norms of a detector.
        if not backbone.is_output_norm(name) or len(norms) == 1:
            name, value = backbone.published_names.published(name, value)
        published[name] = value
    return published


def convert(
    checkpoint: Mapping[str, Any],
    to: str = 'ours',
    name: str | None = None,
    task: str | None = None,
    ema: bool = False,
    **kwargs: Any,
) -> tuple[dict[str, Any], BaseBackbone]:
    """Converts the names and shapes in a checkpoint to ours, or to the published ones.

    No value changes, except in tables that are resized, for example for another ``pretrain_size``.
    What is skipped, resized or left as initialized is logged.

    Args:
        checkpoint (dict): a loaded file with either names, of a backbone, a classifier, or a
            detector or segmentor.
        to (str): 'ours' or 'published'.
        name (str, optional): one of :func:`~l2vit_mm.list_models`. None: the model that the file
            looks like.
        task (str, optional): 'backbone' (for ``init_cfg``), 'classifier' (mmpretrain's), 'detector'
            (or segmentor). None: what the file has.
        ema (bool): take ``model_ema`` instead of ``model``.
        kwargs: arguments of the backbone's class.

    Returns:
        tuple[dict, BaseBackbone]: the state dict, and a backbone that it fits. Further tensors of a
        published file that can't be derived are kept under our names as ``published.NAME``. They
        are skipped when loading, and restored when converting back.

    Raises:
        ValueError: if an argument is out of range or does not suit the file, or if the file looks
            like no architecture or like several.
        CheckpointError: if the file does not fit the architecture.
    """
    if to not in ('ours', 'published'):
        raise ValueError(f"to must be 'ours' or 'published', got {to!r}")
    state = unwrap(checkpoint, ema)
    if ema and not isinstance(checkpoint.get('model_ema'), dict):
        raise ValueError('ema must be False for a file without model_ema, got True')
    part, rest = split(state)
    if name is None:
        found = candidates(part)
        if len(found) != 1:
            raise ValueError(
                'arch must be given, as the file looks like '
                f'{" or ".join(found) or "no known architecture"}'
            )
        name = found[0]
    cls, arch = find_model(name)
    has = (
        'backbone'
        if not rest
        else 'classifier'
        if rest.keys() == set(HEAD.values())
        else 'detector'
    )
    task = has if task is None else task
    if task not in TASKS:
        raise ValueError(f'task must be one of {", ".join(TASKS)}, got {task!r}')
    if task not in ('backbone', has):
        raise ValueError(f"task must be 'backbone' or {has!r} for this file, got {task!r}")
    if to == 'published' and not cls.published_names.rows:
        raise ValueError(
            f"to must be 'ours', as there is no published code for {cls.__name__}, got {to!r}"
        )

    kept = {key: value for key, value in part.items() if key.startswith(KEPT)}
    part = {key: value for key, value in part.items() if key not in kept}
    model = cls(arch, **kwargs)
    adapted, report = adapt(model, part)
    skipped = {KEPT + key: part[key] for key in report.skipped}
    if task == 'backbone':
        report.skipped += top_level(rest)
        rest = {}
    check_and_log(model, part, adapted, report, name)

    for key in report.initialized:  # these are not from the file
        del adapted[key]
    published = to_published(model, adapted)
    for key, value in skipped.items():
        if not _same(value, published.get(key.removeprefix(KEPT))):
            kept[key] = value
    part = (
        {**adapted, **kept}
        if to == 'ours'
        else {**published, **{key.removeprefix(KEPT): value for key, value in kept.items()}}
    )
    if task == 'detector' or (task == 'classifier' and to == 'ours'):
        return {**{f'backbone.{key}': value for key, value in part.items()}, **rest}, model
    return {**part, **{key: rest[value] for key, value in HEAD.items() if value in rest}}, model


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.dtype == b.dtype and torch.equal(a, b)


def convert_file(
    file: str | os.PathLike,
    out: str,
    to: str = 'ours',
    name: str | None = None,
    task: str | None = None,
    ema: bool = False,
    **kwargs: Any,
) -> str:
    """Calls :func:`convert` from file to file, and compares the new file with the old one.

    Args:
        file (str | os.PathLike): the file to convert.
        out (str): as for :func:`~l2vit_mm.checkpoint.save.save`.
        to, name, task, ema, kwargs: as for :func:`convert`.

    Returns:
        str: path of the written file.

    Raises:
        RuntimeError: if the two files give different maps or, where there are heads, different
            logits or parameters of heads; or if weights are not finite.
        ValueError, CheckpointError: see :func:`convert`.
    """
    checkpoint = load(file, map_location='cpu')
    state, model = convert(checkpoint, to, name, task, ema, **kwargs)
    expected = _outputs(model, checkpoint, ema)

    def check(written: str) -> None:
        found = _outputs(model, load(written))
        names = [key for key in expected if task != 'backbone' or key in found]
        wrong = [key for key in names if not _same(expected[key], found.get(key))]
        if wrong:
            raise RuntimeError(f'{file} and the converted file differ in {", ".join(wrong)}')

    content = (
        dict(model=state)
        if to == 'published'
        else dict(state_dict=state, meta=checkpoint.get('meta', {}))
    )
    return save(content, out, check)


def _outputs(
    model: BaseBackbone, checkpoint: Mapping[str, Any], ema: bool = False
) -> dict[str, Tensor]:
    """What a file computes for an image (maps, logits), and the parameters of heads and necks."""
    part, rest = split(unwrap(checkpoint, ema))
    model.load_state_dict(part)
    image = torch.randn(1, model.in_channels, 96, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = model.eval()(image)
    found = {
        f'stage {stage}': values for stage, values in zip(model.out_indices, maps, strict=True)
    }
    if rest.keys() == set(HEAD.values()):
        # Copied: where a file's tensors lie in memory can change the last bit of a product.
        weight, bias = (rest[key].float().clone() for key in HEAD.values())
        found['logits'] = F.linear(maps[-1].mean((2, 3)), weight, bias)
    return {**found, **rest}
