"""Architectures: looked up by name, or checked where they are the user's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch


def resolve_arch(
    arch: str | dict[str, Any], arch_zoo: Mapping[str, dict[str, Any]], optional: Mapping[str, Any]
) -> dict[str, Any]:
    """Looks an architecture up, or checks one of the user's own.

    Args:
        arch (str | dict): a name in ``arch_zoo``, or a dict with the same keys.
        arch_zoo (dict): name to settings; every value has the keys that are required.
        optional (dict): keys that may be left out, with their defaults.

    Returns:
        dict: the settings, with the defaults of those that are left out.

    Raises:
        ValueError: if the name is unknown, a key is missing or unknown, the lists differ in length,
            or the channels of a stage can't be split into its heads.
        TypeError: if ``arch`` is neither a string nor a dict.
    """
    names = ', '.join(arch_zoo)
    if isinstance(arch, str):
        if arch not in arch_zoo:
            raise ValueError(f'arch must be one of {names} or a dict, got {arch!r}')
        return {**optional, **arch_zoo[arch]}
    if not isinstance(arch, dict):
        raise TypeError(f'arch must be one of {names} or a dict, got {arch!r}')
    required = next(iter(arch_zoo.values())).keys() - optional.keys()
    if not required <= arch.keys() <= required | optional.keys():
        raise ValueError(
            f'arch must have the keys {_listed(required)}, and may have '
            f'{_listed(optional)}, got {_listed(arch)}'
        )
    lengths = {key: len(arch[key]) for key in sorted(required) if isinstance(arch[key], Sequence)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f'arch must have one entry per stage in each list, got lengths {lengths}')
    channels, heads = (
        arch[key] if isinstance(arch[key], Sequence) else (arch[key],)
        for key in ('channels', 'num_heads')
    )
    if any(c % h for c, h in zip(channels, heads, strict=True)):
        raise ValueError(
            f'arch must have channels that are multiples of num_heads, got {channels} and {heads}'
        )
    return {**optional, **arch}


def _listed(keys: Collection[str]) -> str:
    return ', '.join(sorted(keys)) or 'none'


def drop_path_rates(drop_path_rate: float, depths: Sequence[int]) -> Iterator[float]:
    """Each block's probability of dropping a branch, from 0 in the first to the rate in the last.

    Args:
        drop_path_rate (float): the rate, 0 <= rate < 1.
        depths (Sequence[int]): blocks of each stage.

    Raises:
        ValueError: if the rate is out of range.
    """
    if not 0.0 <= drop_path_rate < 1.0:
        raise ValueError(f'drop_path_rate must be in [0, 1), got {drop_path_rate}')
    return iter(torch.linspace(0.0, drop_path_rate, sum(depths), device='cpu').tolist())
