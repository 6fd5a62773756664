"""Tests a checkpoint and prints its mAP, mIoU or accuracy."""
import argparse

from mmengine.dist import is_main_process

import l2vit_mm  # noqa: F401  (first: it supplies mmcv's ops before a toolbox asks for them)
from l2vit_mm.engine import launch


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--show-dir', help='folder for the test images with predictions drawn in')
    parser.add_argument(
        '--out', help='where to dump the predictions: a .pkl file; for segmenters a folder of PNGs')
    launch.add_common_arguments(parser)
    args = launch.parse_args(parser, argv)

    cfg = launch.load_config(args)
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.show_dir:
        launch.draw_predictions(cfg, args.show_dir)
    if args.out:
        launch.dump_predictions(cfg, args.out)
    launch.check_files(cfg, ('test', ))
    metrics = launch.build_runner(cfg).test()
    if is_main_process():
        print(launch.summarize(metrics))


if __name__ == '__main__':
    launch.run(main)
