"""Weights in files of several kinds: what is in them, whether they fit, what they look like."""
import itertools
import logging
import re
from collections.abc import Iterable
from functools import lru_cache

import torch
from einops import rearrange
from mmengine.logging import print_log
from torch import Tensor

# A published classifier's names, and mmpretrain's.
HEAD = {'head.weight': 'head.fc.weight', 'head.bias': 'head.fc.bias'}
# Before the names of what a file that was converted here keeps of the published one.
KEPT = 'published.'


class CheckpointError(RuntimeError):
    """A file that doesn't fit a model, or has no weights; the text is one line for the user."""


class NameTable:
    """Names of published state dicts and ours, both ways.

    Args:
        rows (tuple): how a published name begins, and ours; all of both where they end in ``$``.
            ``#`` is a number, the same in both. Ours is None for what is dropped when loading. A
            third entry says, to einops, how the published tensor is made of ours. Towards our names
            the rows are applied one after the other, towards the published ones backwards.
    """

    def __init__(self, *rows: tuple) -> None:
        self.rows = rows

    def ours(self, name: str) -> str | None:
        """Our name for a published one, itself for one of ours, None for what is dropped."""
        if name.startswith(KEPT):
            return None
        for published, ours, *_ in self.rows:
            if ours is None and _pattern(published).match(name):
                return None
            if ours is not None:
                name = _pattern(published).sub(_replacement(ours), name)
        return name

    def published(self, name: str, tensor: Tensor) -> tuple[str, Tensor]:
        """The published name for one of ours, and the tensor in the published shape."""
        for published, ours, *shape in reversed(self.rows):
            if ours is not None and _pattern(ours).match(name):
                name = _pattern(ours).sub(_replacement(published), name)
                tensor = rearrange(tensor, *shape) if shape else tensor
        return name, tensor


@lru_cache(maxsize=None)
def _pattern(name: str) -> re.Pattern:
    start = re.escape(name.removesuffix('$')).replace(r'\#', r'(\d+)')
    return re.compile(f'^{start}' + ('$' if name.endswith('$') else ''))


@lru_cache(maxsize=None)
def _replacement(name: str) -> str:
    numbers = itertools.count(1)
    return re.sub('#', lambda _: rf'\g<{next(numbers)}>', name.removesuffix('$'))


def unwrap(checkpoint: dict, ema: bool = False) -> dict:
    """The state dict in a loaded file.

    Args:
        checkpoint (dict): a state dict, or what holds one as ``state_dict`` (MM), ``model`` or
            ``model_ema`` (published code).
        ema (bool): of the latter two prefer ``model_ema``. (MM's ``state_dict`` is the average
            already, where there is one.)

    Returns:
        dict: name to tensor, without DDP's ``module.``.

    Raises:
        CheckpointError: if there is no tensor in it: an optimizer's state, say.
    """
    keys = ('state_dict', 'model_ema', 'model') if ema else ('state_dict', 'model', 'model_ema')
    state = next((checkpoint[key] for key in keys if isinstance(checkpoint.get(key), dict)),
                 checkpoint)
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(
            f'the checkpoint holds no weights: it has {", ".join(map(str, state))}; accepted are '
            'state_dict, model, model_ema, or a state dict itself')
    return {name.removeprefix('module.'): value for name, value in state.items()}


def backbone_part(state: dict) -> tuple[dict, dict]:
    """The state dict of a detector, segmenter or classifier in two.

    Returns:
        tuple[dict, dict]: the backbone's, without ``backbone.``, empty if there is none; the rest.
    """
    part = {name.removeprefix('backbone.'): value for name, value in state.items()
            if name.startswith('backbone.')}
    return part, {name: value for name, value in state.items() if not name.startswith('backbone.')}


def split(state: dict) -> tuple[dict, dict]:
    """As :func:`backbone_part`, of a published classifier too: its ``head`` is the rest, under the
    names that mmpretrain has. A state dict without either is a backbone's."""
    part, rest = backbone_part(state)
    if not part:
        part = {name: value for name, value in state.items() if name not in HEAD}
        rest = {HEAD[name]: value for name, value in state.items() if name in HEAD}
    return part, rest


def top_level(names: Iterable[str]) -> list[str]:
    """The parts of a model that names belong to: what is before the first dot."""
    return list(dict.fromkeys(name.split('.')[0] for name in names))


def misfits(loaded: dict, own: dict) -> str:
    """Which names of a state dict that is to be loaded are missing, unknown or of another shape
    than a model's own; empty if it fits."""
    kinds = {
        'missing': own.keys() - loaded.keys(),
        'unknown': loaded.keys() - own.keys(),
        'of another shape': {
            name for name in own.keys() & loaded.keys()
            if getattr(loaded[name], 'shape', None) != own[name].shape
        },
    }
    return '; '.join(f'{kind}: {", ".join(sorted(names))}' for kind, names in kinds.items()
                     if names)


def not_finite(state: dict) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return [name for name, value in state.items()
            if isinstance(value, Tensor) and not value.isfinite().all()]


def check_and_log(what: str, loaded: dict, own: dict, notes: dict[str, list[str]],
                  hint: str) -> None:
    """Checks that a state dict is one of a model, and logs what is to be said of it.

    Args:
        what (str): the model.
        loaded (dict): state dict under the model's names.
        own (dict): the model's own.
        notes (dict): names of what was ``'dropped'``, say; ``'left as initialised'`` is in it, and
            those are in ``loaded``.
        hint (str): for the error.

    Raises:
        CheckpointError: if names are missing, unknown or of another shape; it lists them.
    """
    wrong = misfits(loaded, own)
    if wrong:
        raise CheckpointError(f'the checkpoint does not fit {what}: {hint}{wrong}')
    bad = not_finite(loaded)
    notes = {**notes, 'not finite': bad}
    lines = [f'{what}: {len(loaded) - len(notes["left as initialised"])} tensors loaded']
    lines += [f'  {kind}: {", ".join(names)}' for kind, names in notes.items() if names]
    print_log('\n'.join(lines), logger='current', level=logging.WARNING if bad else logging.INFO)


def candidates(state: dict, families: list[type]) -> list[tuple[type, str]]:
    """Which architectures the most names and sizes of a state dict agree with.

    Args:
        state (dict): name, published or ours, to tensor.
        families (list[type]): backbone classes.

    Returns:
        list[tuple[type, str]]: class and arch; several that agree alike; none if it's less than
        half of the names.
    """
    scores = {}
    for family in families:
        names = {family.rename_published(name): value for name, value in state.items()
                 if isinstance(value, Tensor)}
        names.pop(None, None)
        for arch in family.arch_zoo:
            own = _numels(family, arch)
            agree = sum(own.get(name) == value.numel() for name, value in names.items())
            scores[family, arch] = agree / max(len(own), len(names), 1)
    best = max(scores.values())
    return [model for model, score in scores.items() if score == best > 0.5]


def looks_like(state: dict, families: list[type]) -> str:
    """:func:`candidates` as text: ``'FLattenSwin tiny'``, say, several joined by "or"."""
    return ' or '.join(f'{family.__name__} {arch}' for family, arch in candidates(state, families))


@lru_cache(maxsize=None)
def _numels(family: type, arch: str) -> dict[str, int]:
    with torch.device('meta'):
        return {name: value.numel() for name, value in family(arch).state_dict().items()}
