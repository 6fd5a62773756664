"""Helpers shared by the tests of the operators.

An image is a tensor (h, w, ...) here; a batch holds images in one of the three layouts.
"""

import pytest
import torch
import torch.nn.functional as F

from l2vit_mm.ops import extension, linear_attention
from l2vit_mm.ops.linear_attention import reference

LAYOUTS = ('dense', 'packed', 'padded')
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TAIL = 3  # tokens after the last image of a packed batch

NO_GPU = not torch.cuda.is_available()
# For tests of one device; the others use the fixtures `device`, `compiled`, `backend`.
needs_extension = pytest.mark.skipif(
    extension.load_error() is not None, reason=str(extension.load_error())
)


def needs_gpu(test):
    return pytest.mark.cuda(pytest.mark.skipif(NO_GPU, reason='no CUDA device')(test))


def tolerances(dtype):
    """Returns the largest relative errors of the output and of the gradients against float64."""
    return {torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 1e-4)}.get(
        dtype, (torch.finfo(dtype).eps, torch.finfo(dtype).eps)
    )


def relative_error(actual, expected):
    """Returns ||a - b|| / ||b||, which does not depend on the scale of the inputs, or ||a|| if b is
    zero."""
    actual, expected = actual.double(), expected.double()
    size = expected.norm().item()
    return (actual - expected).norm().item() / (size or 1)


def random_images(sizes, *channels, dtype=torch.float32, device='cpu'):
    return [torch.randn(h, w, *channels, device=device).to(dtype) for h, w in sizes]


def join(layout, images, outside=float('nan')):
    """Joins images to a batch. Tokens in no image are NaN, so that reading them shows."""
    if layout == 'padded':
        height, width = (max(x.shape[i] for x in images) + i + 1 for i in (0, 1))
        return torch.stack(
            [
                F.pad(
                    x,
                    (0, 0) * (x.ndim - 2) + (0, width - x.shape[1], 0, height - x.shape[0]),
                    value=outside,
                )
                for x in images
            ]
        )
    tokens = [x.flatten(0, 1) for x in images]
    if layout == 'dense':
        return torch.stack(tokens)
    return torch.cat([*tokens, tokens[0].new_full((TAIL, *tokens[0].shape[1:]), outside)])


def split(layout, batch, sizes):
    """Splits a batch into its images and all that is in none of them."""
    if layout == 'padded':
        images = [x[:h, :w] for x, (h, w) in zip(batch, sizes)]
        rest = [part.flatten() for x, (h, w) in zip(batch, sizes) for part in (x[h:], x[:h, w:])]
        return images, torch.cat(rest)
    if layout == 'dense':
        return [x.unflatten(0, size) for x, size in zip(batch, sizes)], batch.new_empty(0)
    *images, rest = batch.split([*(h * w for h, w in sizes), TAIL])
    return [x.unflatten(0, size) for x, size in zip(images, sizes)], rest


def layout_options(layout, sizes, key_sizes=None, device='cpu'):
    """Returns the arguments of linear_attention that describe the images."""
    if layout == 'dense':
        return {}
    if layout == 'padded':
        return {'valid_hw': torch.tensor(sizes, dtype=torch.int32, device=device)}

    def cu_seqlens(sizes):
        counts = torch.tensor([0, *(h * w for h, w in sizes)])
        return counts.cumsum(0).to(device, torch.int32)

    options = {'cu_seqlens': cu_seqlens(sizes)}
    if key_sizes is not None:
        options['cu_seqlens_k'] = cu_seqlens(key_sizes)
    return options


def sizes_of(images):
    return [tuple(x.shape[:2]) for x in images]


def run(layout, q, k, v, dout, scale=None, attention=linear_attention, **options):
    """Runs all images in one batch and returns the output and the gradients image by image.

    Also checks that tokens in no image are zero.

    Args:
        q, k, v, dout: lists of images.
        scale: as in linear_attention.
        attention: function with its arguments.

    Returns:
        dict: 'out', 'dq', 'dk', 'dv': lists of images; 'dscale': a list of one tensor, if scale is
        one.
    """
    sizes, key_sizes = sizes_of(q), sizes_of(k)
    where = layout_options(layout, sizes, None if key_sizes == sizes else key_sizes, q[0].device)
    leaves = [join(layout, x).requires_grad_() for x in (q, k, v)]
    if isinstance(scale, torch.Tensor):
        scale = scale.detach().clone().requires_grad_()
        leaves.append(scale)
    out = attention(*leaves[:3], scale=scale, **where, **options)
    assert out.is_contiguous()
    grads = torch.autograd.grad(out, leaves, join(layout, dout), materialize_grads=True)
    result = {}
    for name, batch, its_sizes in (
        ('out', out.detach(), sizes),
        ('dq', grads[0], sizes),
        ('dk', grads[1], key_sizes),
        ('dv', grads[2], key_sizes),
    ):
        result[name], rest = split(layout, batch, its_sizes)
        assert not rest.count_nonzero(), f'{name} is not zero outside the images'
    return result | {name: [x] for name, x in zip(('dscale',), grads[3:])}


def expected(q, k, v, dout, scale=None, **options):
    """Returns the same as `run`, computed image by image by the definition in float64."""
    total = {'out': [], 'dq': [], 'dk': [], 'dv': []}
    if isinstance(scale, torch.Tensor):
        scale = scale.detach().double().requires_grad_()
        total['dscale'] = [torch.zeros_like(scale)]
    for image in zip(q, k, v, dout):
        *leaves, gradient = (x.double().flatten(0, 1)[None] for x in image)
        leaves = [x.requires_grad_() for x in leaves]
        out = reference.linear_attention(*leaves, scale, **options)
        if 'dscale' in total:
            leaves.append(scale)
        grads = torch.autograd.grad(out, leaves, gradient, materialize_grads=True)
        q_image, k_image, v_image, _ = image
        for name, x, like in (
            ('out', out.detach(), q_image),
            ('dq', grads[0], q_image),
            ('dk', grads[1], k_image),
            ('dv', grads[2], v_image),
        ):
            total[name].append(x[0].unflatten(0, like.shape[:2]))
        if 'dscale' in total:
            total['dscale'][0] += grads[3]
    return total


def assert_close(actual, expected, forward, backward):
    """Checks the relative errors of a `run`, each over all images."""
    assert actual.keys() == expected.keys()
    errors = {
        name: relative_error(
            *(
                torch.cat([x.double().flatten() for x in images])
                for images in (actual[name], expected[name])
            )
        )
        for name in actual
    }
    assert all(
        error <= (forward if name == 'out' else backward) for name, error in errors.items()
    ), errors


def threshold(q, k, feature_map='relu'):
    """Returns a denom_min that is active for some of the tokens and close to none of them."""
    phi = torch.relu if feature_map == 'relu' else torch.Tensor.double
    denominators = torch.cat(
        [
            torch.einsum('yxhd,hd->yxh', phi(x.double()), phi(y.double()).sum((0, 1))).flatten()
            for x, y in zip(q, k)
        ]
    )
    values = denominators[denominators > 0].sort().values
    middle = values[len(values) // 4 : -(len(values) // 4)]
    widest = (middle[1:] / middle[:-1]).argmax()
    return (middle[widest] * middle[widest + 1]).sqrt().item()
