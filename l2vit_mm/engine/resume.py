"""Runs that go on exactly where they stopped.

A checkpoint of mmengine has no random state. Here none is needed: what is random in a training
step follows from the run's seed and the step's number, and what is random in a sample from the
seed and the sample's place in the run, whichever process or worker draws it.
"""
import os
import pickle
import random
import re
from collections.abc import Iterator
from glob import glob

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import get_dist_info, get_rank
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS, HOOKS

from l2vit_mm.compat.checkpoint import load


def mixed_seed(*numbers: int) -> int:
    """A seed of 32 bits that differs with each of some numbers from 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class Draw(int):
    """The index of a sample that knows the seed for this draw of it."""

    def __new__(cls, index: int, seed: int) -> 'Draw':
        draw = super().__new__(cls, index)
        draw.seed = seed
        return draw

    def __reduce__(self) -> tuple:
        return Draw, (int(self), self.seed)


@DATA_SAMPLERS.register_module()
class SeededSampler(torch.utils.data.Sampler):
    """Gives the indices of another sampler a seed each, for :class:`SeededDataset`.

    It follows from the run's seed, the epoch, and the place of the draw among those of all
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

    def __iter__(self) -> Iterator[Draw]:
        rank, world_size = get_dist_info()
        for place, index in enumerate(self.sampler, self.start):
            yield Draw(index, mixed_seed(self.seed, self.epoch, place * world_size + rank))

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
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
        vars(self)['dataset'] = DATASETS.build(dataset)

    def __getattr__(self, name: str) -> object:
        if name == 'dataset':  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.dataset, name, value)  # hooks exchange pipelines so

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict:
        if not isinstance(index, Draw):
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


@HOOKS.register_module()
class SeedStepHook(Hook):
    """Seeds each training step by the run's seed, the iteration and the process."""

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner, batch_idx: int, data_batch: object = None) -> None:
        """Seeds ``random``, NumPy and torch, on all devices."""
        seed = mixed_seed(runner.seed, runner.iter, get_rank())
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)


def seed_steps_and_samples(cfg: Config) -> None:
    """Lets what is random in a training run follow from its seed."""
    loader = cfg.train_dataloader
    loader.sampler = ConfigDict(type='SeededSampler', sampler=loader.sampler)
    loader.dataset = ConfigDict(type='SeededDataset', dataset=loader.dataset)
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), ConfigDict(type='SeedStepHook')]


def latest_checkpoint(work_dir: str) -> str | None:
    """The last checkpoint of a run that was written to its end; says which were not.

    mmengine notes the name of the last one when it has been written. Later ones are tried first
    nevertheless (the note may be what was broken off), and earlier ones after it.
    """
    files = {file: os.path.getmtime(file) for file in glob(os.path.join(work_dir, '*.pth'))
             if re.fullmatch(r'(epoch|iter)_\d+\.pth', os.path.basename(file))}
    note, noted, written = os.path.join(work_dir, 'last_checkpoint'), None, 0.
    if os.path.isfile(note):
        with open(note, encoding='utf-8') as stream:
            noted, written = os.path.basename(stream.read().strip()), os.path.getmtime(note)
    # (copied files have lost the order in which they were written)
    order = sorted(files, key=lambda file: (
        files[file] > written, os.path.basename(file) == noted, files[file]), reverse=True)
    for file in order:
        if os.path.isdir(file):  # shards: mmengine's business
            return file
        try:
            load(file, map_location='cpu')
        except (pickle.UnpicklingError, OSError) as error:
            print(f'--resume: {error}; trying the one before')
        else:
            return file
    return None
