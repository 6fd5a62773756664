"""Resuming a run exactly where it stopped."""

from __future__ import annotations

import os
import pickle
import re
from glob import glob

from mmengine.config import Config, ConfigDict

from l2vit_mm.apis.errors import UsageError
from l2vit_mm.checkpoint import load


def seed_steps_and_samples(cfg: Config) -> None:
    """Seeds every sample and training step of a run, so that it can be resumed exactly."""
    loader = cfg.train_dataloader
    loader.sampler = ConfigDict(type='SeededSampler', sampler=loader.sampler)
    loader.dataset = ConfigDict(type='SeededDataset', dataset=loader.dataset)
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), ConfigDict(type='SeedStepHook')]


def latest_checkpoint(work_dir: str) -> str | None:
    """The latest complete checkpoint of a run; prints which ones are incomplete.

    mmengine writes the name of a complete checkpoint to ``last_checkpoint``. Newer files are tried
    first nevertheless, as writing that name may have been interrupted, and older ones last.

    Args:
        work_dir (str): work folder of the run.

    Returns:
        str, optional: path of the checkpoint; None if there is none.
    """
    files = {
        file: os.path.getmtime(file)
        for file in glob(os.path.join(work_dir, '*.pth'))
        if re.fullmatch(r'(epoch|iter)_\d+\.pth', os.path.basename(file))
    }
    note, noted, written = os.path.join(work_dir, 'last_checkpoint'), None, 0.0
    if os.path.isfile(note):
        with open(note, encoding='utf-8') as stream:
            noted, written = os.path.basename(stream.read().strip()), os.path.getmtime(note)
    # (Copying files may lose the order in which they were written.)
    order = sorted(
        files,
        key=lambda file: (files[file] > written, os.path.basename(file) == noted, files[file]),
        reverse=True,
    )
    for file in order:
        if os.path.isdir(file):  # shards, which mmengine loads
            return file
        try:
            load(file, map_location='cpu')
        except (pickle.UnpicklingError, OSError) as error:
            print(f'--resume: {error}; trying the previous one')
        else:
            return file
    return None


def resume(cfg: Config) -> None:
    """Makes the run resume from ``cfg.load_from``, or from the latest complete checkpoint in its
    work folder, with the seed of the run that wrote it.

    mmengine restores the seed itself, but only after it has built the data loader with another one.

    Raises:
        UsageError: if the file has weights but no state of a run.
    """
    file = cfg.load_from or latest_checkpoint(cfg.work_dir)
    cfg.resume, cfg.load_from = file is not None, file
    if file is None:
        print(f'--resume: no checkpoint in {cfg.work_dir}; training starts from the beginning')
        return
    if '://' in file or os.path.isdir(file):
        return
    checkpoint = load(file, map_location='cpu')
    missing = {'meta', 'message_hub', 'optimizer'} - checkpoint.keys()
    if missing:
        raise UsageError(
            f'--resume: {file} has no {", ".join(sorted(missing))}: it is not the '
            'state of a run; to start from its weights, set load_from'
        )
    seed = checkpoint['meta'].get('seed')
    if seed is not None:
        cfg.randomness = ConfigDict(cfg.get('randomness') or {}, seed=seed)
