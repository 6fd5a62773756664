"""Published files to ours and back, and how files are written."""
import hashlib
import os
from collections.abc import Callable

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from l2vit_mm.backbones import zoo
from l2vit_mm.backbones.base import HierarchicalBackbone, families
from l2vit_mm.backbones.loading import HEAD, KEPT, candidates, not_finite, split, top_level, unwrap
from l2vit_mm.compat.checkpoint import load

TASKS = ('backbone', 'classifier', 'detector')
EXTENSIONS = ('.pth', '.safetensors')


def convert(checkpoint: dict, to: str = 'ours', name: str | None = None, task: str | None = None,
            ema: bool = False, **kwargs) -> tuple[dict, HierarchicalBackbone]:
    """Turns the names and shapes in a file into ours, or into the published ones.

    No value changes, but those of tables that are resized for another ``pretrain_size``, say. What
    is dropped, resized, left as initialised is logged.

    Args:
        checkpoint (dict): a loaded file of either kind, of a backbone, a classifier, or a detector
            or segmenter.
        to (str): 'ours' or 'published'.
        name (str, optional): one of :func:`~l2vit_mm.list_models`. None: what the file looks like.
        task (str, optional): 'backbone' (for ``init_cfg``), 'classifier' (mmpretrain's), 'detector'
            (or segmenter). None: what the file has.
        ema (bool): of ``model`` and ``model_ema`` take the latter.
        kwargs: arguments of the backbone's class.

    Returns:
        tuple[dict, HierarchicalBackbone]: the state dict, and a backbone that it fits. Ours
        has, as ``published.NAME``, what a published file held besides and can't be derived; it is
        passed over when loading, and is there again on the way back.

    Raises:
        ValueError: for an argument that is not accepted, one that the file can't meet, or a file
            that looks like no architecture, or several.
        RuntimeError: if the file doesn't fit the architecture.
    """
    if to not in ('ours', 'published'):
        raise ValueError(f"to is {to!r}; accepted are 'ours' and 'published'")
    state = unwrap(checkpoint, ema)
    if ema and not isinstance(checkpoint.get('model_ema'), dict):
        raise ValueError('ema is set, but the file has no model_ema')
    part, rest = split(state)
    name = _guess(part) if name is None else name
    if name not in zoo.MODELS:
        raise ValueError(f'arch is {name!r}; accepted are {", ".join(zoo.MODELS)}')
    has = ('backbone' if not rest else
           'classifier' if rest.keys() == set(HEAD.values()) else 'detector')
    task = has if task is None else task
    if task not in TASKS:
        raise ValueError(f'task is {task!r}; accepted are {", ".join(TASKS)}')
    if task not in ('backbone', has):
        raise ValueError(f'task is {task!r}, but the file has a {has}')
    family, arch = zoo.MODELS[name]
    if to == 'published' and not family.published_names.rows:
        raise ValueError(f'to is {to!r}, but there is no published code for {family.__name__}')

    kept = {key: value for key, value in part.items() if key.startswith(KEPT)}
    part = {key: value for key, value in part.items() if key not in kept}
    model = family(arch, **kwargs)
    adapted, notes = model.adapt(part)
    dropped = {KEPT + key: part[key] for key in notes['dropped']}
    if task == 'backbone':
        notes['dropped'] += top_level(rest)
        rest = {}
    model.check_fit(name, part, adapted, notes)

    for key in notes['left as initialised']:  # not the file's
        del adapted[key]
    published = model.to_published(adapted)
    for key, value in dropped.items():
        if not _same(value, published.get(key.removeprefix(KEPT))):
            kept[key] = value
    part = {**adapted, **kept} if to == 'ours' else {
        **published, **{key.removeprefix(KEPT): value for key, value in kept.items()}}
    if task == 'detector' or (task == 'classifier' and to == 'ours'):
        return {**{f'backbone.{key}': value for key, value in part.items()}, **rest}, model
    return {**part, **{key: rest[value] for key, value in HEAD.items() if value in rest}}, model


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.dtype == b.dtype and torch.equal(a, b)


def convert_file(file: str | os.PathLike, out: str, to: str = 'ours', name: str | None = None,
                 task: str | None = None, ema: bool = False, **kwargs) -> str:
    """:func:`convert` from file to file; what is written is loaded again and compared first.

    Args:
        out (str): as for :func:`save`.

    Returns:
        str: the written file.

    Raises:
        RuntimeError: also if the two files don't give the same maps and, where there are heads, the
            same logits and parameters.
    """
    checkpoint = load(file, map_location='cpu')
    state, model = convert(checkpoint, to, name, task, ema, **kwargs)
    expected = _outputs(model, checkpoint, ema)

    def check(written: str) -> None:
        found = _outputs(model, load(written))
        names = [key for key in expected if task != 'backbone' or key in found]
        wrong = [key for key in names if not _same(expected[key], found.get(key))]
        if wrong:
            raise RuntimeError(f'{file} and what was made of it differ in {", ".join(wrong)}')

    content = dict(model=state) if to == 'published' else dict(
        state_dict=state, meta=checkpoint.get('meta', {}))
    return save(content, out, check)


def _outputs(model: HierarchicalBackbone, checkpoint: dict, ema: bool = False) -> dict:
    """What a file gives for an image: maps, logits, and the parameters of heads and necks."""
    part, rest = split(unwrap(checkpoint, ema))
    model.load_state_dict(part)
    image = torch.randn(1, model.in_channels, 96, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = model.eval()(image)
    found = {f'stage {stage}': values for stage, values in zip(model.out_indices, maps)}
    if rest.keys() == set(HEAD.values()):
        head = [rest[key].float() for key in HEAD.values()]
        found['logits'] = F.linear(maps[-1].mean((2, 3)), *head)
    return {**found, **rest}


def save(content: dict, out: str, check: Callable[[str], None] | None = None) -> str:
    """Writes a file, under a name with its hash, as MM's download pages have them.

    Args:
        content (dict): a state dict as ``state_dict`` or ``model``, which is what ``.safetensors``
            gets, and what ``.pth`` gets besides.
        out (str): NAME.pth or NAME.safetensors; the first 8 digits of the file's SHA-256 are put
            behind NAME. Its folder is made.
        check (Callable, optional): called with the written file, before it has its name.

    Returns:
        str: the written file. If anything fails there is none.

    Raises:
        ValueError: for another extension.
        RuntimeError: if a tensor isn't finite.
    """
    name, extension = os.path.splitext(out)
    if extension not in EXTENSIONS:
        raise ValueError(f'out is {out!r}; it must end in {" or ".join(EXTENSIONS)}')
    state = unwrap(content)
    bad = not_finite(state)
    if bad:
        raise RuntimeError(f'not finite in {", ".join(bad)}')
    unnamed = f'{name}.tmp{extension}'
    os.makedirs(os.path.dirname(out) or '.', exist_ok=True)
    try:
        if extension == '.safetensors':
            safetensors.torch.save_file(
                {key: value.contiguous().clone() for key, value in state.items()}, unnamed)
        else:
            torch.save(content, unnamed)
        if check is not None:
            check(unnamed)
        with open(unnamed, 'rb') as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        named = f'{name}-{digest[:8]}{extension}'
        os.replace(unnamed, named)
    finally:
        if os.path.exists(unnamed):
            os.remove(unnamed)
    return named


def _guess(part: dict) -> str:
    """The model that a state dict looks like."""
    found = candidates(part, families())
    names = [name for name, model in zoo.MODELS.items() if model in found]
    if len(names) != 1:
        raise ValueError(f'arch is not given, and the file looks like '
                         f'{" or ".join(names) or "none that is known"}')
    return names[0]
