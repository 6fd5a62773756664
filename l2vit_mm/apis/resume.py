"""Runs that go on exactly where they stopped."""

from __future__ import annotations

import os
import pickle
import re
from glob import glob

from mmengine.config import Config, ConfigDict

from l2vit_mm.apis.errors import UsageError
from l2vit_mm.checkpoint import load


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


def resume(cfg: Config) -> None:
    """Lets the run go on from ``cfg.load_from``, or else from the latest whole checkpoint in its
    work folder, with the seed of the run that wrote it.

    mmengine takes over the seed itself, but after the data loader has been made with another.

    Raises:
        UsageError: if the file has weights but no state of a run.
    """
    file = cfg.load_from or latest_checkpoint(cfg.work_dir)
    cfg.resume, cfg.load_from = file is not None, file
    if file is None:
        print(f'--resume: no checkpoint in {cfg.work_dir}; the run begins')
        return
    if '://' in file or os.path.isdir(file):
        return
    checkpoint = load(file, map_location='cpu')
    missing = {'meta', 'message_hub', 'optimizer'} - checkpoint.keys()
    if missing:
        raise UsageError(f'--resume: {file} has no {", ".join(sorted(missing))}: nothing to go on '
                         'with; to start from its weights set load_from')
    seed = checkpoint['meta'].get('seed')
    if seed is not None:
        cfg.randomness = ConfigDict(cfg.get('randomness') or {}, seed=seed)
