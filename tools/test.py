"""Tests a checkpoint and prints its mAP, mIoU or top-1 accuracy."""

import argparse

from mmengine.dist import is_main_process

import l2vit_mm  # noqa: F401  (first: supplies mmcv's operators before a toolbox imports them)
from l2vit_mm.apis.config import (
    add_common_arguments,
    draw_predictions,
    dump_predictions,
    load_config,
    parse_args,
)
from l2vit_mm.apis.errors import run
from l2vit_mm.apis.files import check_files
from l2vit_mm.apis.runner import build_runner, summarize


def main(argv=None):
    """Runs the tool; None: with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--show-dir', help='folder for the test images with drawn predictions')
    parser.add_argument(
        '--out', help='file for the predictions, .pkl; for segmentors a folder for PNG label maps'
    )
    add_common_arguments(parser)
    args = parse_args(parser, argv)

    cfg = load_config(args)
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    if args.out:
        dump_predictions(cfg, args.out)
    check_files(cfg, ('test',))
    metrics = build_runner(cfg).test()
    if is_main_process():
        print(summarize(metrics))


if __name__ == '__main__':
    run(main)
