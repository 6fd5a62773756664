"""From a config file and a command line to a runner: what tools/train.py and tools/test.py share.

The functions change an ``mmengine.Config`` in place. A user's mistake raises :class:`UsageError`,
whose text is one line; :func:`run` prints it and exits with status 2.
"""
import argparse
import difflib
import inspect
import os
import sys
from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Callable, Iterator, Sequence

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from mmengine.utils import is_abs

import l2vit_mm.engine.amp  # noqa: F401  (registers CpuAmpOptimWrapper, which dumped configs name)
from l2vit_mm.backbones.loading import CheckpointError
from l2vit_mm.compat.checkpoint import load
from l2vit_mm.compat.distributed import init_cpu_group
from l2vit_mm.engine.resume import latest_checkpoint

DOC = 'docs/train.md'

# Top-level config keys that are read by mmengine or the toolboxes without being Runner arguments.
_OTHER_KEYS = {
    'activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
    'find_unused_parameters', 'model_wrapper_cfg', 'runner_type', 'strategy', 'sync_bn',
    'tta_model', 'tta_pipeline',
}
# mmpretrain's data sets that fetch their files themselves.
_SELF_DOWNLOADING = {'MNIST', 'FashionMNIST', 'CIFAR10', 'CIFAR100'}
# What people compare, by the metric's name without its prefix: a label and a format.
_HEADLINES = {
    'bbox_mAP': ('box mAP', '.3f'),
    'segm_mAP': ('mask mAP', '.3f'),
    'mIoU': ('mIoU (%)', '.2f'),
    'top1': ('top-1 accuracy (%)', '.2f'),
}


class UsageError(Exception):
    """Bad input from the command line or the config; the text is one line for the user."""


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both tools have, named as in the OpenMMLab tools."""
    parser.add_argument(
        '--work-dir', help="folder for logs and checkpoints (default: the config's work_dir, or "
        'work_dirs/ and the name of the config file)')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
        help='settings to change in the config, e.g. train_dataloader.batch_size=1 or '
        'model.neck.in_channels="[32,64,128,256]"; list items by their index')
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
        help='how the processes of a distributed run were started')
    # torch.distributed.launch passes it; torchrun sets LOCAL_RANK instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def parse_args(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses ``argv`` (default: the command line) and exports LOCAL_RANK, which mmengine reads."""
    try:
        args = parser.parse_args(argv)
    except (ValueError, AssertionError) as error:  # DictAction: no '=', or unbalanced brackets
        raise UsageError(f'--cfg-options takes KEY=VALUE pairs: {error}') from error
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def load_config(args: argparse.Namespace) -> Config:
    """Reads ``args.config`` and merges the common options into it.

    Raises:
        UsageError: if the file or one of its bases doesn't exist or doesn't parse, if an option
            can't be merged, or if the config's toolbox isn't installed.
    """
    if not os.path.isfile(args.config):
        raise UsageError(f"config: {args.config} doesn't exist; see {DOC}")
    try:
        cfg = Config.fromfile(args.config)
    except (FileNotFoundError, SyntaxError) as error:
        raise UsageError(f'config: {args.config}: {_last_line(error)}') from error
    _check_option_names(cfg, args)
    try:
        cfg.merge_from_dict(args.cfg_options)
    except (KeyError, TypeError) as error:
        raise UsageError(f'--cfg-options: {error.args[0]}') from error

    scope = cfg.get('default_scope')
    if scope and find_spec(scope) is None:
        raise UsageError(f'config: default_scope={scope!r}, but {scope} is not installed')
    if scope == 'mmpretrain':
        _set_dataloader_defaults(cfg)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        name = os.path.splitext(os.path.basename(args.config))[0]
        cfg.work_dir = os.path.join('work_dirs', name)
    return cfg


def enable_amp(cfg: Config) -> None:
    """Switches to mixed precision: float16 with loss scaling on an accelerator, else bfloat16."""
    wrapper = cfg.optim_wrapper
    if wrapper.type not in ('OptimWrapper', 'AmpOptimWrapper', 'CpuAmpOptimWrapper'):
        raise UsageError(f'--amp: optim_wrapper.type must be OptimWrapper, got {wrapper.type!r}')
    if get_device() != 'cpu':
        wrapper.type = 'AmpOptimWrapper'
        wrapper.setdefault('loss_scale', 'dynamic')
    else:
        wrapper.type = 'CpuAmpOptimWrapper'
        wrapper.pop('loss_scale', None)
        wrapper.pop('dtype', None)


def enable_auto_scale_lr(cfg: Config) -> None:
    """Makes the learning rate follow the actual batch size."""
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise UsageError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def dump_predictions(cfg: Config, out: str) -> None:
    """Makes the test write its predictions to ``out``.

    Detectors (masks as RLE) and classifiers write one pickle. Segmenters write a folder of PNG
    label maps, as mmseg's own tool does: their pickle would hold every class's score at every
    pixel.
    """
    scope = cfg.get('default_scope')
    evaluators = _as_list(cfg.test_evaluator)
    is_pickle = out.endswith(('.pkl', '.pickle'))
    if scope == 'mmseg':
        if is_pickle:
            raise UsageError(f'--out: a segmenter writes a folder of PNG label maps, got {out!r}')
        for evaluator in evaluators:
            evaluator.output_dir = out
    else:
        if not is_pickle:
            raise UsageError(f'--out: must end in .pkl or .pickle, got {out!r}')
        metric = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
        evaluators.append(ConfigDict(type=metric, out_file_path=out))
    cfg.test_evaluator = evaluators


def draw_predictions(cfg: Config, show_dir: str) -> None:
    """Makes the toolbox's visualization hook draw every test image into ``show_dir``."""
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    # mmdet would put a relative path under the work folder, the others would not: make it one rule.
    show_dir = os.path.abspath(show_dir)
    hook.interval = 1
    scope = cfg.get('default_scope')
    if scope == 'mmpretrain':
        hook.update(enable=True, out_dir=show_dir)
    elif scope == 'mmseg':
        hook.draw = True
        cfg.visualizer.save_dir = show_dir
    else:
        hook.update(draw=True, test_out_dir=show_dir)


def check_files(cfg: Config, phases: Sequence[str]) -> None:
    """Checks that the files that the run will read exist, and makes its work folder.

    Args:
        cfg: the final config.
        phases: whose dataloaders and evaluators will be used: ``'train'``, ``'val'``, ``'test'``.

    Raises:
        UsageError: if a file or folder is missing, or the work folder can't be made or written.
    """
    for phase in phases:
        name = f'{phase}_dataloader'
        for dataset in _innermost_datasets((cfg.get(name) or {}).get('dataset')):
            for path in _data_paths(dataset):
                _check_exists(path, name)
        for evaluator in _as_list(cfg.get(f'{phase}_evaluator')):
            if evaluator.get('ann_file'):
                _check_exists(evaluator.ann_file, f'{phase}_evaluator')
    if cfg.get('load_from'):
        _check_exists(cfg.load_from, 'checkpoint')
    if 'train' in phases:
        for init_cfg in _pretrained_init_cfgs(cfg.model):
            _check_exists(init_cfg.checkpoint, 'init_cfg.checkpoint')
    try:
        os.makedirs(cfg.work_dir, exist_ok=True)
    except OSError as error:
        raise UsageError(f"work-dir: can't make {cfg.work_dir}: {error.strerror}") from error
    if not os.access(cfg.work_dir, os.W_OK):
        raise UsageError(f"work-dir: can't write to {cfg.work_dir}")


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


def build_runner(cfg: Config) -> Runner:
    """Builds the mmengine runner that the config asks for."""
    if cfg.launcher == 'none' and (cfg.get('strategy') or {}).get('type') == 'ShardedStrategy':
        raise UsageError('strategy: ShardedStrategy shares the model out among processes, which '
                         'tools/dist_train.sh and tools/dist_test.sh start')
    if cfg.launcher != 'none' and get_device() == 'cpu':
        if cfg.launcher != 'pytorch':
            raise UsageError(f'--launcher: {cfg.launcher} needs a GPU; without one: pytorch')
        init_cpu_group(cfg)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


def summarize(metrics: dict) -> str:
    """Puts the figures that people compare on one line, e.g. ``box mAP 0.437  mask mAP 0.396``."""
    known = [(*_HEADLINES[name.split('/')[-1]], value) for name, value in metrics.items()
             if name.split('/')[-1] in _HEADLINES]
    known = known or [(name, '', value) for name, value in metrics.items()]
    return '  '.join(f'{label} {value:{spec}}' for label, spec, value in known) or (
        'no metric: the model predicted nothing, or the config has no evaluator that scores')


def run(main: Callable[[], object]) -> None:
    """Calls a tool's ``main``; a user's mistake becomes one line on stderr and exit status 2."""
    try:
        main()
    except (UsageError, CheckpointError) as error:
        message = str(error)
    except FileNotFoundError as error:  # found only on the way, e.g. one image of a data set
        message = f'{_last_line(error)}; see {DOC}'
    except UnpicklingError as error:  # a checkpoint that is broken, or not safe to load
        message = _last_line(error)
    else:
        return
    print(f'{os.path.basename(sys.argv[0])}: error: {message}', file=sys.stderr)
    sys.exit(2)


def _check_option_names(cfg: Config, args: argparse.Namespace) -> None:
    """A misspelt top-level key would be merged and never read; deeper ones fail when built."""
    known = set(cfg) | set(inspect.signature(Runner.__init__).parameters) | _OTHER_KEYS
    for option in args.cfg_options:
        key = option.split('.')[0]
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean {near[0]!r}?' if near else f'it has {", ".join(sorted(cfg))}'
            raise UsageError(f'--cfg-options: {args.config} has no {key!r}; {hint}')


def _set_dataloader_defaults(cfg: Config) -> None:
    """mmpretrain's configs leave these to its tools."""
    for phase in ('train', 'val', 'test'):
        loader = cfg.get(f'{phase}_dataloader')
        if loader:
            loader.setdefault('collate_fn', ConfigDict(type='default_collate'))
            loader.setdefault('pin_memory', get_device() != 'cpu')
            loader.setdefault('persistent_workers', loader.get('num_workers', 0) > 0)


def _as_list(value) -> list:
    if not value:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _innermost_datasets(dataset) -> Iterator[dict]:
    """Yields the configs of the data sets with files, out of wrappers such as RepeatDataset."""
    for item in _as_list(dataset):
        if isinstance(item, dict):
            inner = item.get('datasets', item.get('dataset'))
            if isinstance(inner, (dict, list, tuple)):
                yield from _innermost_datasets(inner)
            else:
                yield item


def _data_paths(dataset: dict) -> Iterator[str]:
    """Yields the paths that a data set will open, joined as mmengine's BaseDataset joins them."""
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


def _pretrained_init_cfgs(cfg) -> Iterator[dict]:
    """Yields every ``dict(type='Pretrained', ...)`` in a model's config."""
    if isinstance(cfg, dict):
        if cfg.get('type') == 'Pretrained' and cfg.get('checkpoint'):
            yield cfg
        cfg = cfg.values()
    elif not isinstance(cfg, (list, tuple)):
        return
    for value in cfg:
        yield from _pretrained_init_cfgs(value)


def _check_exists(path: str, what: str) -> None:
    # Paths with a scheme (https://, torchvision://, s3://) are the loader's business.
    if '://' not in path and not os.path.exists(path):
        raise UsageError(f"{what}: {path} doesn't exist; see {DOC}")


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]
