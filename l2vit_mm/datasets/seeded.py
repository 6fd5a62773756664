"""Data sets and samplers with reproducible augmentation.

Checkpoints of mmengine have no random state. Here none is needed: the augmentation of a sample is
seeded with the seed of the run and the position of the sample in the run, whichever process or
worker loads it. (:class:`~l2vit_mm.engine.hooks.SeedStepHook` seeds the training steps.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.registry import DATA_SAMPLERS, DATASETS


def mixed_seed(*numbers: int) -> int:
    """A 32-bit seed mixed from non-negative integers, each of which changes it."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class SeededIndex(int):
    """The index of a sample, with the seed of its augmentation."""

    seed: int

    def __new__(cls, index: int, seed: int) -> SeededIndex:
        seeded = super().__new__(cls, index)
        seeded.seed = seed
        return seeded

    def __reduce__(self) -> tuple:
        return SeededIndex, (int(self), self.seed)


@DATA_SAMPLERS.register_module()
class SeededSampler(torch.utils.data.Sampler):
    """Adds a seed to each index of another sampler, for :class:`SeededDataset`.

    The seed is mixed from the seed of the run, the epoch, and the position of the sample among
    those of all processes in that epoch.

    Args:
        dataset (Dataset): the data set; passed by the runner.
        sampler (dict): config of the other sampler.
        seed (int): seed of the run; passed by the runner.
    """

    def __init__(self, dataset: torch.utils.data.Dataset, sampler: dict, seed: int) -> None:
        self.dataset = dataset
        self.sampler = DATA_SAMPLERS.build(sampler, default_args=dict(dataset=dataset, seed=seed))
        self.seed = getattr(self.sampler, 'seed', seed)
        self.epoch = 0
        self.start = 0
        if hasattr(self.sampler, 'skip'):  # called by OneDL's loops
            self.skip = self._skip

    def __iter__(self) -> Iterator[SeededIndex]:
        rank, world_size = get_dist_info()
        for position, index in enumerate(self.sampler, self.start):
            yield SeededIndex(
                index, mixed_seed(self.seed, self.epoch, position * world_size + rank)
            )

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the seeds and of the other sampler."""
        self.epoch = epoch
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)

    def _skip(self, num_samples: int) -> None:
        self.start = num_samples
        self.sampler.skip(num_samples)


@DATASETS.register_module()
class SeededDataset(torch.utils.data.Dataset):
    """A data set that seeds the augmentation of a sample if its index has a seed.

    The random states of ``random``, NumPy and torch (CPU) are restored afterwards.

    Args:
        dataset (dict): config of the data set, whose attributes this one shares.
    """

    def __init__(self, dataset: dict) -> None:
        vars(self)['dataset'] = DATASETS.build(dataset)  # bypasses __setattr__

    def __getattr__(self, name: str) -> Any:
        if name == 'dataset':  # not set yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.dataset, name, value)  # hooks replace pipelines this way

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict:
        if not isinstance(index, SeededIndex):
            return self.dataset[index]
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(index.seed)
        np.random.seed(index.seed)
        torch.default_generator.manual_seed(index.seed)
        try:
            return self.dataset[int(index)]
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
