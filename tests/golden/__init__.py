"""Published figures and the recipe for the weights and images that they were computed with.

A state-dict entry is drawn from its name and shape, in float64, then rounded to float32, so that
two implementations get the same weights without a file of them.
"""

import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# Derived from the architecture: a published file has them, and they are to be ignored.
DERIVED = ('relative_position_index', 'attn_mask')


def load(name: str) -> dict:
    """The figures of one registered backbone, none if there is no file.

    Returns:
        dict: model name -> backbone (arguments of ours), params, keys (name -> shape) and runs.
    """
    file = Path(__file__).parent / f'{name}.json'
    return json.loads(file.read_text()) if file.exists() else {}


def load_all() -> dict:
    """The figures of all backbones."""
    return {
        model: figures
        for file in sorted(Path(__file__).parent.glob('*.json'))
        for model, figures in load(file.stem).items()
    }


def _normal(key: str, shape: list[int]) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(zlib.crc32(key.encode()))).standard_normal(shape)


@cache
def fill(key: str, shape: tuple[int, ...]) -> Tensor:
    """The value of a published state-dict entry, kept: drawing it takes far longer than a copy."""
    last = key.rpartition('.')[2]
    if last == 'num_batches_tracked':
        return torch.zeros(shape, dtype=torch.long)
    if last in DERIVED:
        return torch.full(shape, 7.0)  # a wrong value, which must not be used
    n = np.asarray(_normal(key, shape))
    if last == 'running_var':
        n = np.exp(0.1 * n)
    elif last == 'temperature':
        n = 0.17 + 0.02 * n
    elif last == 'scale':
        n = 0.3 * n
    elif last in ('positional_encoding', 'relative_position_bias_table') or last.startswith(
        'pos_embed'
    ):
        n = 0.2 * n
    elif last == 'weight':
        n = n / np.sqrt(np.prod(shape[1:])) if n.ndim > 1 else 1 + 0.1 * n
    else:
        n = 0.1 * n
    return torch.from_numpy(np.asarray(n)).float()


def state_dict(model: dict) -> dict[str, Tensor]:
    """A state dict under the published names."""
    return {key: fill(key, tuple(shape)).clone() for key, shape in model['keys'].items()}


def image(run: dict) -> Tensor:
    """The image of a run, float32."""
    return torch.from_numpy(_normal('image:' + run['image_key'], run['input'])).float()


def error(out: Tensor, expected: dict) -> float:
    """Largest deviation at the published positions over the output's standard deviation."""
    assert list(out.shape) == expected['shape']
    value = torch.tensor(expected['value'], dtype=torch.float64)
    deviation = (out.detach().double().flatten()[expected['index']] - value).abs().max()
    return deviation.item() / expected['std']
