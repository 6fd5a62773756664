"""Trains the model of a config: a detector, a segmenter or a classifier."""
import argparse

import l2vit_mm  # noqa: F401  (first: it supplies mmcv's ops before a toolbox asks for them)
from l2vit_mm.engine import launch
from l2vit_mm.engine.resume import seed_steps_and_samples


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
    launch.add_common_arguments(parser)
    args = launch.parse_args(parser, argv)

    cfg = launch.load_config(args)
    if args.amp:
        launch.enable_amp(cfg)
    if args.auto_scale_lr:
        launch.enable_auto_scale_lr(cfg)
    if args.resume:
        cfg.load_from = None if args.resume == 'auto' else args.resume
    launch.check_files(cfg, ('train', 'val'))
    if args.resume:
        launch.resume(cfg)
    seed_steps_and_samples(cfg)
    launch.build_runner(cfg).train()


if __name__ == '__main__':
    launch.run(main)
