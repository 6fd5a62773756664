"""The operators that compat supplies, against a compiled mmcv's figures and against autograd."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision

from l2vit_mm import compat

pytest.importorskip('mmcv')
compat.supply_mmcv_ops()

from mmcv import ops  # noqa: E402
from mmcv.ops import multi_scale_deform_attn as msda  # noqa: E402

from l2vit_mm.compat import mmcv_ops  # noqa: E402

GOLDEN = {
    name: torch.from_numpy(array)
    for name, array in np.load(Path(__file__).parents[1] / 'golden' / 'mmcv_ops.npz').items()
}
DEVICES = [
    'cpu',
    pytest.param(
        'cuda',
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device'),
        ],
    ),
]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def golden(name, device):
    return GOLDEN[name].clone().to(device)


def assert_golden(actual, name, exact=True):
    """To the bit on the CPU, where the figures come from, unless sums are free in their order."""
    if exact and actual.device.type == 'cpu':
        assert torch.equal(actual, GOLDEN[name]), name
    else:
        torch.testing.assert_close(actual.cpu(), GOLDEN[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('offset', [0, 1])
def test_nms_golden(device, offset):
    dets, index = ops.nms(golden('boxes', device), golden('scores', device), 0.5, offset=offset)
    assert_golden(index, f'nms_offset{offset}_index')
    assert_golden(dets, f'nms_offset{offset}_dets')


def test_nms_options_golden(device):
    boxes, scores = golden('boxes', device), golden('scores', device)
    _, index = ops.nms(boxes, scores, 0.5, score_threshold=0.3, max_num=7)
    assert_golden(index, 'nms_thr_index')
    dets, index = ops.batched_nms(
        boxes, scores, golden('batched_idxs', device), dict(type='nms', iou_threshold=0.5)
    )
    assert_golden(dets, 'batched_nms_dets')
    assert_golden(index, 'batched_nms_index')


def test_nms_compares_in_float32():
    # An IoU of just float32(0.1) is more than the double 0.1 but not more than mmcv's threshold.
    boxes = torch.tensor([[0.0, 0.0, 10.0, 11.0], [0.0, 0.0, 1.0, 11.0]])
    assert float(np.float32(11) / np.float32(110)) > 0.1
    _, index = ops.nms(boxes, torch.tensor([0.9, 0.8]), 0.1)
    assert index.tolist() == [0, 1]


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_nms_half(device, dtype):
    boxes, scores = golden('boxes', device).to(dtype), golden('scores', device).to(dtype)
    index = mmcv_ops.nms(boxes, scores, 0.5, 0)
    assert torch.equal(index, mmcv_ops.nms(boxes.float(), scores.float(), 0.5, 0))


@pytest.mark.parametrize('method', ['naive', 'linear', 'gaussian'])
def test_soft_nms_golden(device, method):
    dets, index = ops.soft_nms(
        golden('boxes', device),
        golden('scores', device),
        iou_threshold=0.3,
        sigma=0.5,
        min_score=1e-3,
        method=method,
    )
    assert_golden(dets, f'softnms_{method}_dets')
    assert_golden(index, f'softnms_{method}_index')


def soft_nms_one_by_one(boxes, scores, iou_threshold, sigma, min_score, method, offset):
    """Soft NMS box by box, with the list operations of mmcv's kernel."""
    boxes, scores = list(boxes.numpy()), list(scores.numpy())  # whose numbers stay float32
    iou_threshold, min_score = np.float32([iou_threshold, min_score])
    index = list(range(len(boxes)))
    kept = []
    while boxes:
        best = scores.index(max(scores))
        for items in (boxes, scores, index):
            items[0], items[best] = items[best], items[0]
        top, score = boxes.pop(0), scores.pop(0)
        kept.append((index.pop(0), score))
        i = 0
        while i < len(boxes):
            x1, y1, x2, y2 = boxes[i]
            w = max(min(x2, top[2]) - max(x1, top[0]) + offset, 0)
            h = max(min(y2, top[3]) - max(y1, top[1]) + offset, 0)
            areas = [(b[2] - b[0] + offset) * (b[3] - b[1] + offset) for b in (top, boxes[i])]
            iou = w * h / (sum(areas) - w * h)
            if method == 'gaussian':
                scores[i] *= np.exp(-iou * iou / sigma)
            elif iou >= iou_threshold:
                scores[i] *= 1 - iou if method == 'linear' else 0
            if scores[i] < min_score:  # the last of the list takes its place
                for items in (boxes, scores, index):
                    items[i] = items[-1]
                    items.pop()
            else:
                i += 1
    return kept


@pytest.mark.parametrize('method', ['naive', 'linear', 'gaussian'])
@pytest.mark.parametrize('offset', [0, 1])
def test_soft_nms_order_and_ties(method, offset):
    generator = torch.Generator().manual_seed(offset)
    for count in (1, 2, 7, 40):
        corner = torch.randint(0, 12, (count, 2), generator=generator)
        size = torch.randint(1, 9, (count, 2), generator=generator)
        boxes = torch.cat((corner, corner + size), dim=1).float()
        scores = torch.randint(1, 5, (count,), generator=generator) / 4  # many are equal
        options = dict(iou_threshold=0.3, sigma=0.5, min_score=0.2, method=method, offset=offset)
        expected = soft_nms_one_by_one(boxes, scores, **options)
        dets, index = ops.soft_nms(boxes, scores, **options)
        assert index.tolist() == [i for i, _ in expected]
        assert torch.equal(dets[:, :4], boxes[index])
        torch.testing.assert_close(dets[:, 4], torch.tensor([s for _, s in expected]))


def test_no_boxes(device):
    boxes, scores = torch.zeros(0, 4, device=device), torch.zeros(0, device=device)
    for function in (lambda: ops.nms(boxes, scores, 0.5), lambda: ops.soft_nms(boxes, scores)):
        dets, index = function()
        assert dets.shape == (0, 5) and index.shape == (0,) and index.dtype == torch.int64


@pytest.mark.parametrize('aligned', [0, 1])
@pytest.mark.parametrize('sampling', [0, 2])
def test_roi_align_golden(device, aligned, sampling):
    feat = golden('feat', device).requires_grad_()
    out = ops.roi_align(feat, golden('rois', device), (5, 4), 1 / 8, sampling, 'avg', bool(aligned))
    out.backward(golden('roi_align_grad_in', device))
    assert_golden(out.detach(), f'roi_align_a{aligned}_s{sampling}')
    assert_golden(feat.grad, f'roi_align_a{aligned}_s{sampling}_grad')


def test_roi_align_max_golden(device):
    out = ops.roi_align(
        golden('feat', device), golden('rois', device), (5, 4), 1 / 8, 2, 'max', True
    )
    assert_golden(out, 'roi_align_max')


@pytest.mark.parametrize('aligned', [False, True])
@pytest.mark.parametrize('sampling', [0, 3])
def test_roi_align_max_equals_pooled_samples(device, aligned, sampling):
    """Bins of one sample each, then max pooling, differentiated by autograd."""
    height, width, scale = 3, 2, 0.25
    # 13 x 9 pixels of the map: adaptive sampling takes 5 x 5 samples a bin
    rois = torch.tensor([[1, 20, -26, 56, 26], [0, 3, 50, 39, 102]], device=device).double()
    grid = sampling or 5
    feat = torch.randn(2, 3, 20, 16, dtype=torch.float64, device=device)
    theirs, ours = feat.clone().requires_grad_(), feat.clone().requires_grad_()
    samples = torchvision.ops.roi_align(
        theirs, rois, (height * grid, width * grid), scale, 1, aligned
    )
    expected = F.max_pool2d(samples, grid)
    actual = ops.roi_align(ours, rois, (height, width), scale, sampling, 'max', aligned)
    torch.testing.assert_close(actual, expected)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    actual.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_roi_align_max_of_nothing():
    feat = torch.randn(1, 2, 4, 4, requires_grad=True)
    empty = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]])
    out = ops.roi_align(feat, empty, (2, 2), 1.0, 0, 'max', True)
    assert (out == -10000).all()  # what mmcv's kernel starts from
    out.sum().backward()
    assert (feat.grad == 0).all()
    assert ops.roi_align(feat, empty[:0], (2, 2), 1.0, 0, 'max', True).shape == (0, 2, 2, 2)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_roi_align_half(device, dtype, mode):
    """What mmdet calls under AMP: features and RoIs in half precision."""
    feat = golden('feat', device).to(dtype).requires_grad_()
    rois = golden('rois', device).to(dtype)
    with torch.autocast(device, dtype=dtype):
        out = ops.roi_align(feat, rois, (5, 4), 1 / 8, 2, mode, True)
    out.float().square().sum().backward()
    wide = feat.detach().float().requires_grad_()
    expected = ops.roi_align(wide, rois.float(), (5, 4), 1 / 8, 2, mode, True)
    expected.square().sum().backward()
    assert out.dtype == feat.grad.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    if mode == 'avg':  # with max, the position of the sample is rounded as well
        torch.testing.assert_close(feat.grad.float(), wide.grad, rtol=2e-2, atol=5e-2)


def test_modulated_deform_conv_golden(device):
    x, offset, mask, weight, bias = (
        golden(f'dc_{name}', device).requires_grad_()
        for name in ('x', 'offset', 'mask', 'weight', 'bias')
    )
    out = ops.modulated_deform_conv2d(x, offset, mask, weight, bias, 1, 1, 1, 2, 2)
    out.backward(golden('dc_grad_out', device))
    assert_golden(out.detach(), 'mdcn', exact=False)
    for name, tensor in dict(x=x, offset=offset, mask=mask, weight=weight, bias=bias).items():
        assert_golden(tensor.grad, f'mdcn_grad_{name}', exact=False)
    # without a bias
    x.grad = None
    ops.modulated_deform_conv2d(x, offset, mask, weight, None, 1, 1, 1, 2, 2).backward(
        golden('dc_grad_out', device)
    )
    assert_golden(x.grad, 'mdcn_grad_x', exact=False)


def test_deform_conv_golden(device):
    x, offset, weight = (
        golden(f'dc_{name}', device).requires_grad_() for name in ('x', 'offset', 'weight')
    )
    out = ops.deform_conv2d(x, offset, weight, 1, 1, 1, 2, 2)
    out.backward(golden('dc_grad_out', device))
    assert_golden(out.detach(), 'dcn', exact=False)
    for name, tensor in dict(x=x, offset=offset, weight=weight).items():
        assert_golden(tensor.grad, f'dcn_grad_{name}', exact=False)


@pytest.mark.parametrize('kind', [ops.DeformConv2dPack, ops.ModulatedDeformConv2dPack])
def test_deform_conv_without_offsets_is_a_convolution(device, kind):
    """Unequal height and width in everything, which the golden figures don't have."""
    geometry = dict(kernel_size=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 3))
    layer = kind(4, 6, bias=False, **geometry).to(device)  # its offsets start at zero
    x = torch.randn(2, 4, 9, 8, device=device)
    expected = F.conv2d(x, layer.weight, None, *list(geometry.values())[1:])
    factor = 0.5 if kind is ops.ModulatedDeformConv2dPack else 1  # its masks start at sigmoid(0)
    torch.testing.assert_close(layer(x), factor * expected, rtol=1e-4, atol=1e-5)
    layer(x).sum().backward()
    assert layer.conv_offset.weight.grad.abs().sum() > 0


def focal_loss(logits, target, gamma, alpha, weight):
    """Eq. 5 of Lin et al. 2017, in logits."""
    positive = F.one_hot(target, logits.shape[1] + 1)[:, :-1]
    log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
    loss = -(
        positive * alpha * log_q.exp() ** gamma * log_p
        + (1 - positive) * (1 - alpha) * log_p.exp() ** gamma * log_q
    )
    return loss * torch.cat((weight, weight.new_ones(1)))[target, None]


@pytest.mark.parametrize('reduction', ['none', 'mean', 'sum'])
@pytest.mark.parametrize('weighted', [False, True])
def test_sigmoid_focal_loss(device, reduction, weighted):
    target = torch.tensor([0, 2, 3, 1, 3], device=device)  # 3: background
    weight = torch.tensor([0.5, 2, 3] if weighted else [1.0, 1, 1], device=device).double()
    logits = 3 * torch.randn(5, 3, dtype=torch.float64, device=device)
    theirs, ours = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = focal_loss(theirs, target, 1.5, 0.3, weight)
    expected = dict(none=expected, sum=expected.sum(), mean=expected.sum() / 5)[reduction]
    actual = ops.sigmoid_focal_loss(ours, target, 1.5, 0.3, weight if weighted else None, reduction)
    torch.testing.assert_close(actual, expected)
    grad = torch.rand_like(expected)
    expected.backward(grad)
    actual.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_sigmoid_focal_loss_of_sure_logits_is_finite(device):
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], device=device, requires_grad=True)
    loss = ops.sigmoid_focal_loss(
        logits, torch.tensor([0, 0], device=device), 2.0, 0.25, None, 'none'
    )
    loss.sum().backward()
    assert loss[0].abs().max() == 0 and loss[1].min() > 20
    assert loss.isfinite().all() and logits.grad.isfinite().all()


@pytest.fixture
def attention_inputs(device):
    generator = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[6, 4], [3, 5]])
    value = torch.randn(2, 39, 3, 8, generator=generator, dtype=torch.float64)
    locations = 1.4 * torch.rand(2, 7, 3, 2, 4, 2, generator=generator).double() - 0.2
    weights = torch.rand(2, 7, 3, 2, 4, generator=generator).double()
    return [t.to(device) for t in (value, shapes, locations, weights)]


def test_ms_deform_attn_equals_mmcv_pytorch(device, attention_inputs):
    value, shapes, locations, weights = attention_inputs
    start = torch.tensor([0, 24], device=device)
    theirs = [t.clone().requires_grad_() for t in (value, locations, weights)]
    ours = [t.clone().requires_grad_() for t in (value, locations, weights)]
    expected = msda.multi_scale_deformable_attn_pytorch(theirs[0], shapes, *theirs[1:])
    actual = msda.MultiScaleDeformableAttnFunction.apply(ours[0], shapes, start, *ours[1:], 64)
    torch.testing.assert_close(actual, expected)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    actual.backward(grad)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine.grad, other.grad)


def test_ms_deform_attn_half(device, attention_inputs):
    value, shapes, locations, weights = attention_inputs
    start = torch.tensor([0, 24], device=device)
    half = value.half().requires_grad_()
    with torch.autocast(device, dtype=torch.float16):
        actual = msda.MultiScaleDeformableAttnFunction.apply(
            half, shapes, start, locations.float(), weights.float(), 64
        )
    actual.float().sum().backward()
    assert actual.dtype == half.grad.dtype == torch.float16
    expected = msda.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    torch.testing.assert_close(actual.double(), expected, rtol=2e-2, atol=2e-2)


def test_an_operator_that_is_not_supplied_raises_when_called():
    layer = ops.RoIPool((2, 2), 1.0)
    if ops.get_compiler_version() != 'not compiled':
        pytest.skip('mmcv has compiled operators')
    with pytest.raises(NotImplementedError, match="'roi_pool_forward'.*docs/compat.md"):
        layer(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5))


def test_mmcv_says_that_it_has_operators():
    from mmcv.utils import collect_env
    from mmengine.utils.dl_utils import mmcv_full_available

    assert mmcv_full_available()
    assert collect_env()['MMCV Compiler']
