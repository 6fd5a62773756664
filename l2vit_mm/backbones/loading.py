"""Weights in files of several kinds: what is in them, whether they fit, what they look like."""
import logging

import torch
from mmengine.logging import print_log
from torch import Tensor


def unwrap(checkpoint: dict) -> dict:
    """The state dict in a loaded file.

    Args:
        checkpoint (dict): a state dict, or what holds one as ``state_dict`` (MM), ``model`` or
            ``model_ema`` (published code; the former if there are both).

    Returns:
        dict: name to tensor, without DDP's ``module.``.

    Raises:
        RuntimeError: if there is no tensor in it: an optimizer's state, say.
    """
    state = next((checkpoint[key] for key in ('state_dict', 'model', 'model_ema')
                  if isinstance(checkpoint.get(key), dict)), checkpoint)
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise RuntimeError(f'the checkpoint holds no weights: it has {", ".join(map(str, state))}; '
                           'accepted are state_dict, model, model_ema, or a state dict itself')
    return {name.removeprefix('module.'): value for name, value in state.items()}


def backbone_part(state: dict) -> tuple[dict, list[str]]:
    """Splits the state dict of a detector, segmenter or classifier.

    Returns:
        tuple[dict, list[str]]: the backbone's, without ``backbone.``; empty if there is none. And
        the names of the other parts.
    """
    part = {name.removeprefix('backbone.'): value for name, value in state.items()
            if name.startswith('backbone.')}
    others = {name.split('.')[0]: None for name in state if not name.startswith('backbone.')}
    return part, list(others)


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
        RuntimeError: if names are missing, unknown or of another shape; it lists them.
    """
    wrong = misfits(loaded, own)
    if wrong:
        raise RuntimeError(f'the checkpoint does not fit {what}: {hint}{wrong}')
    bad = [name for name, value in loaded.items() if not value.isfinite().all()]
    notes = {**notes, 'not finite': bad}
    lines = [f'{what}: {len(loaded) - len(notes["left as initialised"])} tensors loaded']
    lines += [f'  {kind}: {", ".join(names)}' for kind, names in notes.items() if names]
    print_log('\n'.join(lines), logger='current', level=logging.WARNING if bad else logging.INFO)


def looks_like(state: dict, families: list[type]) -> str:
    """Which architecture the most names and sizes of a state dict agree with.

    Args:
        state (dict): name, published or ours, to tensor.
        families (list[type]): backbone classes.

    Returns:
        str: ``'FLattenSwin tiny'``, say; several joined by "or" where they agree alike; empty if
        it's less than half of the names.
    """
    scores = {}
    for family in families:
        names = {family.rename_published(name): value for name, value in state.items()
                 if isinstance(value, Tensor)}
        names.pop(None, None)
        for arch in family.arch_zoo:
            with torch.device('meta'):
                own = family(arch).state_dict()
            agree = sum(name in own and own[name].numel() == value.numel()
                        for name, value in names.items())
            scores[f'{family.__name__} {arch}'] = agree / max(len(own), len(names), 1)
    best = max(scores.values())
    return ' or '.join(name for name, score in scores.items() if score == best > 0.5)
