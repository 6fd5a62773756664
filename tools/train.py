"""Trains the detector, segmentor or classifier of a config."""

import argparse
import sys

import l2vit_mm  # noqa: F401  (first: supplies mmcv's operators before a toolbox imports them)
from l2vit_mm.apis.config import (
    add_common_arguments,
    enable_amp,
    enable_auto_scale_lr,
    load_config,
    parse_args,
    set_backbone_checkpoint,
    starts_from_scratch,
)
from l2vit_mm.apis.errors import run
from l2vit_mm.apis.files import check_files
from l2vit_mm.apis.resume import resume, seed_steps_and_samples
from l2vit_mm.apis.runner import build_runner


def main(argv=None):
    """Runs the tool; None: with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--amp', action='store_true', help='train with mixed precision')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from this checkpoint, or without a name from the latest in the work folder',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by the actual batch size divided by the config's",
    )
    parser.add_argument(
        '--backbone-checkpoint',
        metavar='FILE',
        help='file or URL of weights that the backbone starts from, such as the published ones',
    )
    add_common_arguments(parser)
    args = parse_args(parser, argv)

    cfg = load_config(args)
    if args.amp:
        enable_amp(cfg)
    if args.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    if args.backbone_checkpoint:
        set_backbone_checkpoint(cfg, args.backbone_checkpoint)
    if args.resume:
        cfg.load_from = None if args.resume == 'auto' else args.resume
    check_files(cfg, ('train', 'val'))
    if args.resume:
        resume(cfg)
    seed_steps_and_samples(cfg)
    if starts_from_scratch(cfg):
        print(
            'warning: the backbone starts from random weights, but the published results start '
            'from ImageNet weights; set them with --backbone-checkpoint FILE (README, Published '
            'weights)',
            file=sys.stderr,
        )
    build_runner(cfg).train()


if __name__ == '__main__':
    run(main)
