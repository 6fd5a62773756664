"""Checks the files that a run will read and write before it begins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from mmengine.config import Config
from mmengine.utils import is_abs

from l2vit_mm.apis.config import as_list, pretrained_init_cfgs
from l2vit_mm.apis.errors import DOC, UsageError

# mmpretrain's data sets that download their files themselves.
_SELF_DOWNLOADING = {'MNIST', 'FashionMNIST', 'CIFAR10', 'CIFAR100'}


def check_files(cfg: Config, phases: Sequence[str]) -> None:
    """Checks that the files that the run will read exist, and creates its work folder.

    Args:
        cfg (Config): the final config.
        phases (Sequence[str]): ``'train'``, ``'val'``, ``'test'``: phases whose data loaders and
            evaluators will be used.

    Raises:
        UsageError: if a file or folder is missing, or the work folder can't be created or written.
    """
    for phase in phases:
        name = f'{phase}_dataloader'
        for dataset in _innermost_datasets((cfg.get(name) or {}).get('dataset')):
            for path in _data_paths(dataset):
                _check_exists(path, name)
        for evaluator in as_list(cfg.get(f'{phase}_evaluator')):
            if evaluator.get('ann_file'):
                _check_exists(evaluator.ann_file, f'{phase}_evaluator')
    if cfg.get('load_from'):
        _check_exists(cfg.load_from, 'checkpoint')
    if 'train' in phases:
        for init_cfg in pretrained_init_cfgs(cfg.model):
            _check_exists(init_cfg['checkpoint'], 'init_cfg.checkpoint')
    try:
        os.makedirs(cfg.work_dir, exist_ok=True)
    except OSError as error:
        raise UsageError(f"work-dir: can't create {cfg.work_dir}: {error.strerror}") from error
    if not os.access(cfg.work_dir, os.W_OK):
        raise UsageError(f"work-dir: can't write to {cfg.work_dir}")


def _innermost_datasets(dataset: object) -> Iterator[dict]:
    """Yields the configs of the data sets inside wrappers such as RepeatDataset."""
    for item in as_list(dataset):
        if isinstance(item, dict):
            inner = item.get('datasets', item.get('dataset'))
            if isinstance(inner, (dict, list, tuple)):
                yield from _innermost_datasets(inner)
            else:
                yield item


def _data_paths(dataset: dict) -> Iterator[str]:
    """Yields the paths that a data set will open, joined as mmengine's BaseDataset does."""
    backend = (dataset.get('backend_args') or {}).get('backend', 'local')
    if backend != 'local' or dataset.get('type') in _SELF_DOWNLOADING:
        return
    root = dataset.get('data_root') or ''
    prefixes = dataset.get('data_prefix') or {}
    prefixes = prefixes.values() if isinstance(prefixes, dict) else [prefixes]
    if root:
        yield root
    for path in (dataset.get('ann_file'), *prefixes):
        if path:
            yield path if is_abs(path) else os.path.join(root, path)


def _check_exists(path: str, what: str) -> None:
    # Paths with a scheme (https://, torchvision://, s3://) are left to the loader.
    if '://' not in path and not os.path.exists(path):
        raise UsageError(f"{what}: {path} doesn't exist; see {DOC}")
