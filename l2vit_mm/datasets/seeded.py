"""Samples whose augmentation can be repeated.

A checkpoint of mmengine has no random state. Here none is needed: what is random in a sample
follows from the run's seed and the sample's position in the run, whichever process or worker draws
it. (And what is random in a training step from the seed and the step's number: see
:class:`~l2vit_mm.engine.hooks.SeedStepHook`.)
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
    """A seed of 32 bits that differs with each of some numbers from 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class SeededIndex(int):
    """The index of a sample, with the seed for this draw of it."""

    seed: int

    def __new__(cls, index: int, seed: int) -> SeededIndex:
        seeded = super().__new__(cls, index)
        seeded.seed = seed
        return seeded

    def __reduce__(self) -> tuple:
        return SeededIndex, (int(self), self.seed)


@DATA_SAMPLERS.register_module()
class SeededSampler(torch.utils.data.Sampler):
    """Gives the indices of another sampler a seed each, for :class:`SeededDataset`.

    It follows from the run's seed, the epoch, and the position of the draw among those of all
    processes in that epoch.

    Args:
        dataset (Dataset): handed over by the runner.
        sampler (dict): config of the other sampler.
        seed (int): the run's, handed over by the runner.
    """

    def __init__(self, dataset: torch.utils.data.Dataset, sampler: dict, seed: int) -> None:
        self.dataset = dataset
        self.sampler = DATA_SAMPLERS.build(sampler, default_args=dict(dataset=dataset, seed=seed))
        self.seed = getattr(self.sampler, 'seed', seed)
        self.epoch = 0
        self.start = 0
        if hasattr(self.sampler, 'skip'):  # OneDL's loops ask for it
            self.skip = self._skip

    def __iter__(self) -> Iterator[SeededIndex]:
        rank, world_size = get_dist_info()
        for position, index in enumerate(self.sampler, self.start):
            yield SeededIndex(index, mixed_seed(self.seed, self.epoch, position * world_size + rank))

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Called by the runner before each epoch."""
        self.epoch = epoch
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)

    def _skip(self, num_samples: int) -> None:
        self.start = num_samples
        self.sampler.skip(num_samples)


@DATASETS.register_module()
class SeededDataset(torch.utils.data.Dataset):
    """A data set whose augmentation follows from the seed of the draw.

    The random states of ``random``, NumPy and torch (CPU) are what they were before, afterwards.

    Args:
        dataset (dict): config of the data set.
    """

    def __init__(self, dataset: dict) -> None:
        vars(self)['dataset'] = DATASETS.build(dataset)  # past __setattr__

    def __getattr__(self, name: str) -> Any:
        if name == 'dataset':  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.dataset, name, value)  # hooks exchange pipelines so

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
