"""Trains the model of a config: a detector, a segmenter or a classifier."""
import argparse
import sys

import l2vit_mm  # noqa: F401  (first: it supplies mmcv's ops before a toolbox asks for them)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--amp', action='store_true', help='train with mixed precision')
    parser.add_argument(
        '--resume', nargs='?', const='auto', metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the latest in the work folder if none is named')
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help='scale the learning rate by the actual over the config\'s base batch size')
    parser.add_argument(
        '--backbone-checkpoint', metavar='FILE',
        help='file or address with ImageNet weights for the backbone, as published')
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
        print('warning: the backbone starts from random weights, and the published results from '
              'ImageNet weights: --backbone-checkpoint FILE gives them (README, Published weights)',
              file=sys.stderr)
    build_runner(cfg).train()


if __name__ == '__main__':
    run(main)
