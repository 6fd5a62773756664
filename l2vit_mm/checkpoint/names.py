"""Translation between the names in published state dicts and ours."""

from __future__ import annotations

import itertools
import re
from functools import cache

from einops import rearrange
from torch import Tensor

# Names of the head in published classifiers, and in mmpretrain's.
HEAD = {'head.weight': 'head.fc.weight', 'head.bias': 'head.fc.bias'}
# Prefix of tensors of a published file that a converted file keeps but the model doesn't use.
KEPT = 'published.'


class NameTable:
    """A table of published names and ours, used in both directions.

    Args:
        rows (tuple): prefixes of the published name and of ours, or whole names if both end in
            ``$``. ``#`` stands for a number, the same in both. Ours is None for what is skipped
            when loading. An optional third entry is the einops pattern that turns our tensor into
            the published one. Rows are applied in order from published names to ours, and in
            reverse order in the other direction.

    Example:
        >>> table = NameTable(('blocks.#.norm1.', 'stages.#.attn_norm.'), ('head.', None))
        >>> table.ours('blocks.3.norm1.bias'), table.ours('head.bias')
        ('stages.3.attn_norm.bias', None)
    """

    def __init__(self, *rows: tuple) -> None:
        self.rows = rows

    def ours(self, name: str) -> str | None:
        """Our name for a published one; our names are returned as they are, None means skipped."""
        if name.startswith(KEPT):
            return None
        for published, ours, *_ in self.rows:
            if ours is None and _pattern(published).match(name):
                return None
            if ours is not None:
                name = _pattern(published).sub(_replacement(ours), name)
        return name

    def published(self, name: str, tensor: Tensor) -> tuple[str, Tensor]:
        """The published name for one of ours, and the tensor (any shape) in the published shape."""
        for published, ours, *shape in reversed(self.rows):
            if ours is not None and _pattern(ours).match(name):
                name = _pattern(ours).sub(_replacement(published), name)
                tensor = rearrange(tensor, *shape) if shape else tensor
        return name, tensor


@cache
def _pattern(name: str) -> re.Pattern[str]:
    start = re.escape(name.removesuffix('$')).replace(r'\#', r'(\d+)')
    return re.compile(f'^{start}' + ('$' if name.endswith('$') else ''))


@cache
def _replacement(name: str) -> str:
    numbers = itertools.count(1)
    return re.sub('#', lambda _: rf'\g<{next(numbers)}>', name.removesuffix('$'))
