"""From a config file and a command line to a config, which the functions change in place."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.device import get_device
from mmengine.runner import Runner

from l2vit_mm.apis.errors import DOC, UsageError, last_line

# Top-level config keys that mmengine or the toolboxes read, besides the arguments of Runner.
_OTHER_KEYS = {
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'strategy',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
}


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that train.py and test.py share, named as in the OpenMMLab tools."""
    parser.add_argument(
        '--work-dir',
        help="folder for logs and checkpoints (default: the config's work_dir, or "
        'work_dirs/ and the name of the config file)',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='settings to change in the config, e.g. train_dataloader.batch_size=1 or '
        'model.neck.in_channels="[32,64,128,256]"; items of a list are addressed by index',
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='how the processes of a distributed run were started',
    )
    # torch.distributed.launch passes it; torchrun sets LOCAL_RANK instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def parse_args(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses ``argv`` (None: the command line) and sets LOCAL_RANK, which mmengine reads.

    Raises:
        UsageError: if ``--cfg-options`` are not KEY=VALUE pairs.
    """
    try:
        args = parser.parse_args(argv)
    except (ValueError, AssertionError) as error:  # DictAction: no '=', or unbalanced brackets
        raise UsageError(f'--cfg-options must be KEY=VALUE pairs: {error}') from error
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def load_config(args: argparse.Namespace) -> Config:
    """Reads ``args.config`` and merges the common options into it.

    Raises:
        UsageError: if the file or one of its bases doesn't exist or can't be parsed, if an option
            can't be merged, or if the config's toolbox isn't installed.
    """
    if not os.path.isfile(args.config):
        raise UsageError(f"config: {args.config} doesn't exist; see {DOC}")
    try:
        cfg = Config.fromfile(args.config)
    except (FileNotFoundError, SyntaxError) as error:
        raise UsageError(f'config: {args.config}: {last_line(error)}') from error
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


def set_backbone_checkpoint(cfg: Config, file: str) -> None:
    """Sets the file whose weights the backbone starts from, for example a published one.

    Raises:
        UsageError: if the config has no ``model.backbone``.
    """
    if 'backbone' not in cfg.model:
        raise UsageError('--backbone-checkpoint: the config has no model.backbone')
    cfg.model.backbone.init_cfg = ConfigDict(type='Pretrained', checkpoint=file)


def starts_from_scratch(cfg: Config) -> bool:
    """Whether the backbone of a detector or segmentor will start from random weights."""
    backbone = cfg.model.get('backbone')
    return (
        backbone is not None
        and cfg.get('default_scope') != 'mmpretrain'
        and not cfg.get('load_from')
        and not any(pretrained_init_cfgs(backbone))
    )


def pretrained_init_cfgs(cfg: object) -> Iterator[dict]:
    """Yields every ``dict(type='Pretrained', ...)`` in a model's config."""
    if isinstance(cfg, dict):
        if cfg.get('type') == 'Pretrained' and cfg.get('checkpoint'):
            yield cfg
        cfg = list(cfg.values())
    if isinstance(cfg, list | tuple):
        for value in cfg:
            yield from pretrained_init_cfgs(value)


def enable_amp(cfg: Config) -> None:
    """Switches to mixed precision: float16 with loss scaling on a GPU, bfloat16 on the CPU.

    Raises:
        UsageError: if the config has an optimizer wrapper of another kind.
    """
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
    """Scales the learning rate by the actual batch size divided by the config's.

    Raises:
        UsageError: if the config has no ``auto_scale_lr.base_batch_size``.
    """
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise UsageError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def dump_predictions(cfg: Config, out: str) -> None:
    """Makes the test write its predictions to ``out``.

    Detectors (masks as RLE) and classifiers write one pickle. Segmentors write a folder of PNG
    label maps, as mmseg's own tool does: a pickle would hold the scores of all classes at every
    pixel.

    Raises:
        UsageError: if ``out`` has the wrong kind of name.
    """
    scope = cfg.get('default_scope')
    evaluators = as_list(cfg.test_evaluator)
    is_pickle = out.endswith(('.pkl', '.pickle'))
    if scope == 'mmseg':
        if is_pickle:
            raise UsageError(f'--out must be a folder, for PNG label maps, got {out!r}')
        for evaluator in evaluators:
            evaluator.output_dir = out
    else:
        if not is_pickle:
            raise UsageError(f'--out must end in .pkl or .pickle, got {out!r}')
        metric = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
        evaluators.append(ConfigDict(type=metric, out_file_path=out))
    cfg.test_evaluator = evaluators


def draw_predictions(cfg: Config, show_dir: str) -> None:
    """Makes the toolbox's visualization hook draw every test image into ``show_dir``.

    Raises:
        UsageError: if the config has no such hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    # mmdet puts a relative path under the work folder, the others don't: the same rule for all.
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


def _check_option_names(cfg: Config, args: argparse.Namespace) -> None:
    """Raises for an unknown top-level key, which would be ignored; deeper ones fail when built."""
    known = set(cfg) | set(inspect.signature(Runner.__init__).parameters) | _OTHER_KEYS
    for option in args.cfg_options:
        key = option.split('.')[0]
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean {near[0]!r}?' if near else f'it has {", ".join(sorted(cfg))}'
            raise UsageError(f'--cfg-options: {args.config} has no {key!r}; {hint}')


def _set_dataloader_defaults(cfg: Config) -> None:
    """Sets what mmpretrain's own tools set, as its configs don't."""
    for phase in ('train', 'val', 'test'):
        loader = cfg.get(f'{phase}_dataloader')
        if loader:
            loader.setdefault('collate_fn', ConfigDict(type='default_collate'))
            loader.setdefault('pin_memory', get_device() != 'cpu')
            loader.setdefault('persistent_workers', loader.get('num_workers', 0) > 0)


def as_list(value: object) -> list:
    """A list of nothing, of one value, or of those in a list or tuple."""
    if not value:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
