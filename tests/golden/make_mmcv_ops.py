"""Makes mmcv_ops.npz again: what a compiled mmcv 2.1 computes from the inputs in that file.

    python -m tests.golden.make_mmcv_ops

It needs an environment with a compiled mmcv (mmcv._ext), CPU only. l2vit_mm is not imported, which
would supply its own operators where there are none.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parent / 'mmcv_ops.npz'
INPUTS = (
    'boxes',
    'scores',
    'batched_idxs',
    'feat',
    'rois',
    'roi_align_grad_in',
    'dc_x',
    'dc_weight',
    'dc_offset',
    'dc_mask',
    'dc_bias',
    'dc_grad_out',
)


def figures(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns what the installed mmcv computes, by the names in the file."""
    from mmcv import ops

    out = {}
    boxes, scores = inputs['boxes'], inputs['scores']
    for offset in (0, 1):
        dets, index = ops.nms(boxes, scores, 0.5, offset=offset)
        out.update({f'nms_offset{offset}_index': index, f'nms_offset{offset}_dets': dets})
    out['nms_thr_index'] = ops.nms(boxes, scores, 0.5, score_threshold=0.3, max_num=7)[1]
    out['batched_nms_dets'], out['batched_nms_index'] = ops.batched_nms(
        boxes, scores, inputs['batched_idxs'], dict(type='nms', iou_threshold=0.5)
    )
    for method in ('linear', 'gaussian', 'naive'):
        dets, index = ops.soft_nms(
            boxes, scores, iou_threshold=0.3, sigma=0.5, min_score=1e-3, method=method
        )
        out.update({f'softnms_{method}_dets': dets, f'softnms_{method}_index': index})

    for aligned in (1, 0):
        for sampling in (0, 2):
            feat = inputs['feat'].clone().requires_grad_()
            pooled = ops.roi_align(
                feat, inputs['rois'], (5, 4), 1 / 8, sampling, 'avg', bool(aligned)
            )
            pooled.backward(inputs['roi_align_grad_in'])
            key = f'roi_align_a{aligned}_s{sampling}'
            out.update({key: pooled.detach(), f'{key}_grad': feat.grad})
    out['roi_align_max'] = ops.roi_align(
        inputs['feat'], inputs['rois'], (5, 4), 1 / 8, 2, 'max', True
    )

    names = ('x', 'offset', 'mask', 'weight', 'bias')
    leaves = {name: inputs[f'dc_{name}'].clone().requires_grad_() for name in names}
    result = ops.modulated_deform_conv2d(*leaves.values(), 1, 1, 1, 2, 2)
    result.backward(inputs['dc_grad_out'])
    out['mdcn'] = result.detach()
    out.update({f'mdcn_grad_{name}': leaf.grad for name, leaf in leaves.items()})

    names = ('x', 'offset', 'weight')
    leaves = {name: inputs[f'dc_{name}'].clone().requires_grad_() for name in names}
    result = ops.deform_conv2d(*leaves.values(), 1, 1, 1, 2, 2)
    result.backward(inputs['dc_grad_out'])
    out['dcn'] = result.detach()
    out.update({f'dcn_grad_{name}': leaf.grad for name, leaf in leaves.items()})
    return out


def main() -> None:
    with np.load(FILE) as file:
        inputs = {name: torch.from_numpy(file[name]) for name in INPUTS}
    out = {**inputs, **figures(inputs)}
    np.savez(FILE, **{name: value.numpy() for name, value in out.items()})
    print(f'{FILE}: {len(out)} arrays')


if __name__ == '__main__':
    main()
