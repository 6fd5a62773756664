"""torch.library.opcheck, torch.compile, torch.export, autocast and CUDA graphs."""

import pytest
import torch
from op_testing import (
    LAYOUTS,
    assert_close,
    expected,
    join,
    layout_options,
    needs_extension,
    needs_gpu,
    random_images,
    relative_error,
    run,
    tolerances,
)
from torch._dynamo.testing import CompileCounterWithBackend

from l2vit_mm.ops import focused_feature_map, linear_attention, linear_attention_qkvpacked

OPTIONS = (True, False, 20.0, 1e-6)  # relu, mean, denom_min, eps


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def operator_arguments(layout, device, scale):
    """Returns (q, k, v), dout, scale, (cu_seqlens, cu_seqlens_k, valid_hw) of an operator."""
    shape, sizes = {
        'dense': ((2, 5), (None,) * 3),
        'packed': ((9,), ([0, 3, 7], [0, 2, 7], None)),
        'padded': ((2, 3, 4), (None, None, [[3, 2], [1, 4]])),
    }[layout]
    sizes = [x and torch.tensor(x, dtype=torch.int32, device=device) for x in sizes]
    qkv = [torch.randn(*shape, 2, 4, device=device) for _ in range(3)]
    # Of another type, like its gradient.
    scale = torch.rand(2, device=device, dtype=torch.float64) if scale else None
    return qkv, torch.randn(*shape, 2, 4, device=device), scale, sizes


@pytest.mark.parametrize('scale', [False, True], ids=['no scale', 'scale'])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_opcheck(layout, scale, device, compiled):
    ops = torch.ops.l2vit_mm
    qkv, dout, scale, sizes = operator_arguments(layout, device, scale)
    together, together_sizes = torch.stack(qkv, -3), (sizes[0], sizes[2])

    _, *state = ops.linear_attention(*qkv, scale, 1.5, *sizes, *OPTIONS)
    torch.library.opcheck(
        ops.linear_attention_backward.default, (dout, *qkv, scale, 1.5, *state, *sizes, *OPTIONS)
    )
    _, *state = ops.linear_attention_qkvpacked(together, scale, 1.5, *together_sizes, *OPTIONS)
    torch.library.opcheck(
        ops.linear_attention_qkvpacked_backward.default,
        (dout, together, scale, 1.5, *state, *together_sizes, *OPTIONS),
    )

    for x in (*qkv, together, *([] if scale is None else [scale])):
        x.requires_grad_()
    torch.library.opcheck(ops.linear_attention.default, (*qkv, scale, 1.5, *sizes, *OPTIONS))
    torch.library.opcheck(
        ops.linear_attention_qkvpacked.default, (together, scale, 1.5, *together_sizes, *OPTIONS)
    )


def test_opcheck_other_sizes_of_keys_and_values(device, compiled):
    q, k, v = (
        torch.randn(2, n, 3, d, device=device, requires_grad=True)
        for n, d in ((5, 4), (7, 4), (7, 6))
    )
    torch.library.opcheck(
        torch.ops.l2vit_mm.linear_attention.default,
        (q, k, v, None, 1.0, None, None, None, *OPTIONS),
    )


@pytest.mark.parametrize('pos', [False, True], ids=['no pos', 'pos'])
def test_opcheck_focused_feature_map(pos, device, compiled):
    ops = torch.ops.l2vit_mm
    x, dout = (torch.randn(2, 5, 6, device=device) for _ in range(2))
    s = torch.randn(1, 1, 6, device=device, dtype=torch.float64)
    pos = torch.randn(5, 6, device=device) if pos else None
    torch.library.opcheck(ops.focused_feature_map_backward.default, (dout, x, s, pos, 3.0))
    for leaf in (x, s, *([] if pos is None else [pos])):
        leaf.requires_grad_()
    torch.library.opcheck(ops.focused_feature_map.default, (x, s, pos, 3.0))


# torch.compile: one graph for all sizes

# Sizes of the images of four calls. Numbers that are equal in the first call would be treated as
# the same (3 images, because valid_hw is always (.., 2)).
SIZES = {
    'dense': ([(3, 4)] * 3, [(5, 7)] * 4, [(9, 11)] * 2, [(2, 8)] * 5),
    'packed': (
        [(3, 4), (1, 5), (2, 2)],
        [(5, 7), (2, 2), (1, 1), (0, 3)],
        [(9, 11), (2, 3)],
        [(1, 2)] * 5,
    ),
}
SIZES['padded'] = SIZES['packed']


def attention_of_projection(q, k, v, **options):
    return linear_attention_qkvpacked(torch.stack([q, k, v], -3), **options)


def check_compiled(attention, layout, sizes, device):
    images = [random_images(sizes, 6, 10, device=device) for _ in range(4)]
    scale = torch.rand(6, device=device) + 0.5
    result = run(layout, *images, scale, attention=attention, normalizer='mean')
    assert_close(result, expected(*images, scale, normalizer='mean'), *tolerances(torch.float32))


@pytest.mark.parametrize('attention', [linear_attention, attention_of_projection])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_compiled_once_for_all_sizes(layout, attention, device, compiled):
    counter = CompileCounterWithBackend('aot_eager')
    f = torch.compile(attention, backend=counter, fullgraph=True, dynamic=True)
    first, *others = SIZES[layout]
    check_compiled(f, layout, first, device)
    compilations = counter.frame_count
    for sizes in others:
        check_compiled(f, layout, sizes, device)
    assert counter.frame_count == compilations


@pytest.mark.parametrize('layout', LAYOUTS)
def test_no_compilation_after_the_second_size(layout, device, compiled):
    """Without declaring dynamic sizes."""
    counter = CompileCounterWithBackend('aot_eager')
    f = torch.compile(attention_of_projection, backend=counter, fullgraph=True)
    first, second, *others = SIZES[layout]
    for sizes in (first, second):
        check_compiled(f, layout, sizes, device)
    compilations = counter.frame_count
    for sizes in others:
        check_compiled(f, layout, sizes, device)
    assert counter.frame_count == compilations <= 2


def test_compiled_for_a_marked_dimension(device, compiled):
    counter = CompileCounterWithBackend('aot_eager')
    f = torch.compile(linear_attention_qkvpacked, backend=counter, fullgraph=True)
    for tokens in (12, 35, 99):
        qkv = torch.randn(2, tokens, 3, 6, 10, device=device)
        torch._dynamo.mark_dynamic(qkv, 1)
        like = linear_attention_qkvpacked(qkv, denom_min=1.0, backend='reference')
        assert relative_error(f(qkv, denom_min=1.0), like) < 1e-5
    assert counter.frame_count == 1


def test_compiled_reference(device):
    f = torch.compile(
        lambda q, k, v, **options: linear_attention(q, k, v, backend='reference', **options),
        backend='aot_eager',
        fullgraph=True,
        dynamic=True,
    )
    for sizes in SIZES['dense'][:2]:
        check_compiled(f, 'dense', sizes, device)


def test_compiled_focused_feature_map(device, compiled):
    counter = CompileCounterWithBackend('aot_eager')
    f = torch.compile(focused_feature_map, backend=counter, fullgraph=True, dynamic=True)
    s = torch.randn(10, device=device, requires_grad=True)
    compilations = []
    for batch, tokens in ((2, 12), (3, 35), (4, 99)):
        x = torch.randn(batch, tokens, 10, device=device, requires_grad=True)
        pos = torch.randn(1, tokens, 10, device=device, requires_grad=True)
        dout = torch.randn_like(x)
        out, like = f(x, s, 3, pos), focused_feature_map(x, s, 3, pos, backend='reference')
        assert relative_error(out, like) < 1e-5
        for actual, wanted in zip(
            *(torch.autograd.grad(y, (x, s, pos), dout) for y in (out, like))
        ):
            assert relative_error(actual, wanted) < 1e-4
        compilations.append(counter.frame_count)
    assert compilations[0] == compilations[-1]


@pytest.mark.slow
@pytest.mark.parametrize('layout', LAYOUTS)
def test_inductor(layout, device, compiled):
    """Between other operators, which are compiled."""

    def block(q, k, v, **options):
        return linear_attention(q * 2, k + 1, v - 1, **options) * 3

    f = torch.compile(block, fullgraph=True, dynamic=True)
    for sizes in SIZES[layout][:2]:
        images = [random_images(sizes, 6, 10, device=device) for _ in range(4)]
        assert_close(
            run(layout, *images, attention=f),
            run(layout, *images, attention=block, backend='reference'),
            1e-5,
            1e-4,
        )


@needs_extension
@pytest.mark.parametrize(
    'name, wrong',
    [
        ('cu_seqlens', [0, 5, 3]),
        ('cu_seqlens', [1, 5, 7]),
        ('cu_seqlens', [0, 5, 100]),
        ('valid_hw', [[4, 4], [4, 6]]),
        ('valid_hw', [[-1, 4], [4, 5]]),
    ],
    ids=str,
)
def test_wrong_sizes_in_a_graph(name, wrong):
    """Values cannot be checked while a graph is traced: on the CPU the operator rejects them."""
    shape = (20,) if name == 'cu_seqlens' else (2, 4, 5)
    qkv = torch.randn(*shape, 3, 2, 8)
    f = torch.compile(linear_attention_qkvpacked, backend='aot_eager', fullgraph=True)
    with pytest.raises((ValueError, RuntimeError), match=name):
        f(qkv, **{name: torch.tensor(wrong)})


# torch.export


class Attention(torch.nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.where = {'packed': 'cu_seqlens', 'padded': 'valid_hw'}.get(layout)
        self.scale = torch.nn.Parameter(torch.rand(2))

    def forward(self, qkv, sizes=None):
        options = {self.where: sizes} if self.where else {}
        return linear_attention_qkvpacked(
            qkv.relu(), scale=self.scale, normalizer='mean', **options
        )


@pytest.mark.parametrize('layout', LAYOUTS)
def test_export(layout, device, compiled, tmp_path):
    images, tokens, height, width = (
        torch.export.Dim(name, min=2, max=1000) for name in ('images', 'tokens', 'height', 'width')
    )
    bounds = torch.export.Dim('bounds', min=3, max=1000)  # two images or more
    shapes, dims = {
        'dense': (((2, 12), (3, 35)), ({0: images, 1: tokens},)),
        'packed': (((20,), (41,)), ({0: tokens}, {0: bounds})),
        'padded': (((2, 5, 7), (3, 9, 4)), ({0: images, 1: height, 2: width}, {0: images})),
    }[layout]
    sizes = {
        'dense': ((), ()),
        'packed': (([0, 5, 20],), ([0, 5, 12, 40],)),
        'padded': (([[5, 3], [2, 7]],), ([[9, 4], [1, 1], [0, 0]],)),
    }[layout]
    (first, second) = (
        (
            torch.randn(*shape, 3, 2, 8, device=device),
            *(torch.tensor(x, device=device) for x in its_sizes),
        )
        for shape, its_sizes in zip(shapes, sizes)
    )
    module = Attention(layout).to(device)
    program = torch.export.export(module, first, dynamic_shapes=dims, strict=False)
    torch.export.save(program, tmp_path / 'program.pt2')
    program = torch.export.load(tmp_path / 'program.pt2').module()
    for args in (first, second):
        assert torch.equal(program(*args), module(*args))


# Autocast


def autocast(device):
    return torch.autocast(device, torch.bfloat16 if device == 'cpu' else torch.float16)


@pytest.mark.parametrize(
    'types, result',
    [
        ((torch.float32, torch.bfloat16, torch.float16), torch.float32),
        ((torch.bfloat16, torch.bfloat16, torch.float32), torch.float32),
        ((torch.float16, torch.float16, torch.float16), torch.float16),
        ((torch.float64, torch.float32, torch.bfloat16), torch.float64),
    ],
    ids=str,
)
def test_autocast_takes_the_widest_type(types, result, device, backend):
    q, k, v = (
        torch.randn(2, 50, 2, 8, device=device, dtype=dtype, requires_grad=True) for dtype in types
    )
    scale = torch.rand(2, device=device, requires_grad=True)
    like = linear_attention(
        q.double(), k.double(), v.double(), scale=scale.double(), backend='reference'
    )
    with autocast(device):
        out = linear_attention(q, k, v, scale=scale, backend=backend)
    assert out.dtype == result
    assert relative_error(out, like) < tolerances(result)[0]
    dout = torch.randn_like(out)
    for x, actual, wanted in zip(
        (q, k, v, scale),
        torch.autograd.grad(out, (q, k, v, scale), dout),
        torch.autograd.grad(like, (q, k, v, scale), dout.double()),
    ):
        assert actual.dtype == x.dtype
        assert relative_error(actual, wanted) < max(1e-4, 2 * torch.finfo(x.dtype).eps)


def test_autocast_rounds_nothing(device, backend):
    q, k, v = (torch.rand(1, 10_000, 2, 8, device=device) * 10 for _ in range(3))
    x, s = torch.randn(50, 8, device=device), torch.randn(8, device=device)
    with autocast(device):
        outs = (
            linear_attention(q, k, v, backend=backend),
            linear_attention_qkvpacked(torch.stack([q, k, v], -3), backend=backend),
            focused_feature_map(x, s, backend=backend),
        )
    likes = (
        *[linear_attention(q.double(), k.double(), v.double(), backend='reference')] * 2,
        focused_feature_map(x.double(), s.double(), backend='reference'),
    )
    for out, like in zip(outs, likes):
        assert out.dtype == torch.float32
        assert relative_error(out, like) < 1e-5


def test_autocast_of_the_operator_itself(device, compiled):
    q, k, v = (
        torch.randn(2, 9, 2, 8, device=device, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    )
    with autocast(device):
        out, *_ = torch.ops.l2vit_mm.linear_attention(
            q, k, v, None, 1.0, None, None, None, *OPTIONS
        )
    like = linear_attention(q, k.float(), v.float(), denom_min=OPTIONS[2], backend='reference')
    assert out.dtype == torch.float32
    assert relative_error(out, like) < 1e-5


def test_autocast_in_a_graph(device, compiled):
    linear = torch.nn.Linear(16, 48, device=device)
    x = torch.randn(2, 30, 16, device=device)

    def block(x):
        q, k, v = linear(x).unflatten(-1, (3, 2, 8)).unbind(2)
        return linear_attention(q, k, v.float(), denom_min=5.0)  # half, half and float32

    f = torch.compile(block, backend='aot_eager', fullgraph=True)
    with autocast(device):
        out, like = f(x), block(x)
    assert out.dtype == torch.float32
    assert relative_error(out, like) < 1e-5
    gradients = [torch.autograd.grad(y.sum(), linear.weight)[0] for y in (out, like)]
    assert relative_error(*gradients) < 1e-2  # half-precision sums in two orders


# CUDA only


@needs_gpu
@pytest.mark.parametrize('layout', LAYOUTS)
def test_cuda_graph(layout):
    """Nothing is copied to the host during capture, and new values give new results."""
    sizes = SIZES[layout][2]
    images = [random_images(sizes, 6, 10, device='cuda') for _ in range(3)]
    qkv = torch.stack([join(layout, x) for x in images], -3).requires_grad_()
    where = layout_options(layout, sizes, device='cuda')

    def step():
        out = linear_attention_qkvpacked(qkv, **where)
        return out, *torch.autograd.grad(out, qkv, torch.ones_like(out))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        qkv.copy_(torch.randn_like(qkv))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(*x) for x in zip(captured, step()))


@needs_gpu
def test_sizes_on_a_gpu_are_read_once():
    qkv = torch.randn(20, 3, 2, 8, device='cuda')
    cu_seqlens = torch.tensor([0, 5, 20], device='cuda')
    linear_attention_qkvpacked(qkv, cu_seqlens=cu_seqlens)
    torch.cuda.set_sync_debug_mode('error')
    try:
        linear_attention_qkvpacked(qkv, cu_seqlens=cu_seqlens)
    finally:
        torch.cuda.set_sync_debug_mode('default')
    cu_seqlens[1] = 30  # new values in the same tensor are checked again
    with pytest.raises(ValueError, match='cu_seqlens decreases'):
        linear_attention_qkvpacked(qkv, cu_seqlens=cu_seqlens)
