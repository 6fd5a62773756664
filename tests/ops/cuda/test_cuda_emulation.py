"""The CUDA kernels and their launchers on the CPU, compiled with the emulation in this folder.

AddressSanitizer and UBSan check them; threads and blocks run in random orders. Expected values
come from the reference in float64, image by image.
"""

import shutil
import struct
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import l2vit_mm.ops
from l2vit_mm.ops.focused_feature_map.reference import focused_feature_map
from l2vit_mm.ops.linear_attention.reference import linear_attention

HERE = Path(__file__).parent
KERNELS = Path(l2vit_mm.ops.__file__).parent / 'csrc' / 'cuda'
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]  # in the order of params.h
TOLERANCES = dict(zip(DTYPES, [1e-12, 1e-5, 6e-4, 5e-3]))
DIMS = [
    (1, 1),
    (5, 5),
    (8, 8),
    (16, 16),
    (32, 32),
    (33, 33),
    (48, 48),
    (64, 64),
    (100, 100),
    (128, 128),
    (256, 256),
    (16, 48),
    (48, 16),
    (5, 130),
    (130, 5),
    (256, 8),
]
SIZES = {
    'dense': [(9, 31)] * 2,
    'packed': [(1, 1), (7, 11), (0, 0), (19, 17)],
    'padded': [(1, 1), (7, 11), (0, 0), (19, 17)],
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which('g++'), reason='needs g++')]


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
    """Runs cases and copies their results into their tensors."""
    folder = tmp_path_factory.mktemp('emulation')
    sources = [*KERNELS.glob('*.cu'), HERE / 'driver.cpp', HERE / 'emulation' / 'emulation.cpp']
    subprocess.run(
        [
            'g++',
            '-std=c++20',
            '-O2',
            '-g1',
            '-fno-strict-aliasing',
            '-Wall',
            '-Werror',
            '-Wno-unknown-pragmas',
            '-fsanitize=address,undefined',
            '-fno-sanitize-recover=all',
            f'-I{HERE / "emulation"}',
            f'-I{KERNELS}',
            '-x',
            'c++',
            *sources,
            '-o',
            folder / 'driver',
        ],
        check=True,
    )

    def run(*cases):
        (folder / 'cases').write_bytes(b''.join(case.to_bytes() for case in cases))
        done = subprocess.run(
            [folder / 'driver', folder / 'cases', folder / 'results'],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        results = memoryview((folder / 'results').read_bytes())
        for case in cases:
            for array in case.arrays:
                array.copy_(
                    torch.frombuffer(bytearray(results[: len(array)]), dtype=torch.uint8)
                    if len(array)
                    else array
                )
                results = results[len(array) :]
        assert not results

    return run


class Case:
    """The arrays and fields of one call, in the format of driver.cpp."""

    def __init__(self, kind: str, seed: int):
        self.seed = seed
        self.arrays: list[Tensor] = []  # the bytes of each storage
        self.fields = struct.pack('q', ord(kind))

    def add(self, *fields: int | float | Tensor | None):
        """Appends numbers, and tensors as the number of their storage."""
        for x in fields:
            if x is None:
                x = -1
            elif isinstance(x, Tensor):
                x = self._array(x)
            self.fields += struct.pack('d' if isinstance(x, float) else 'q', x)

    def _array(self, x: Tensor) -> int:
        data = torch.tensor([], dtype=torch.uint8).set_(x.untyped_storage())
        for i, array in enumerate(self.arrays):
            if array.data_ptr() == data.data_ptr() and len(data):
                return i
        self.arrays.append(data)
        return len(self.arrays) - 1

    def to_bytes(self) -> bytes:
        arrays = b''.join(struct.pack('q', len(x)) + x.numpy().tobytes() for x in self.arrays)
        return struct.pack('qq', self.seed, len(self.arrays)) + arrays + self.fields


@dataclass
class Call:
    """One call of linear attention, forward and backward, on random images.

    ``results`` returns ``out``, ``dq``, ``dk``, ``dv``, a list of (tokens, H, channels) each, and
    ``dscale`` (H,) where there is a scale.
    """

    layout: str = 'dense'
    sizes: list[tuple[int, int]] = ()
    key_sizes: list[tuple[int, int]] | None = None
    dims: tuple[int, int] = (8, 8)
    heads: int = 2
    dtype: torch.dtype = torch.float32
    relu: bool = True
    mean: bool = False
    factor: float = 1.0
    scale: bool = True
    memory: str = 'contiguous'
    seed: int = 0
    tail: int = 0  # tokens of a packed tensor that are in no image, or rows and columns of a map

    def __post_init__(self):
        self.key_sizes = self.key_sizes or self.sizes
        generator = torch.Generator().manual_seed(1000 * self.dims[0] + self.dims[1])

        def images(sizes, channels):
            return [
                torch.randn(
                    h * w, self.heads, channels, generator=generator, dtype=torch.float64
                ).to(self.dtype)
                for h, w in sizes
            ]

        self.q, self.dout = (images(self.sizes, d) for d in self.dims)
        self.k, self.v = (images(self.key_sizes, d) for d in self.dims)
        if not self.relu and self.mean:  # keep the denominator away from zero
            self.q, self.k = ([x.abs() for x in images] for images in (self.q, self.k))
        acc = torch.promote_types(self.dtype, torch.float32)
        self.scales = torch.rand(self.heads, dtype=acc, generator=generator) + 0.5
        # About half of the divisors are clamped.
        self.denom_min = 0.4 * self.dims[0] * max((h * w for h, w in self.key_sizes), default=1) / 4
        self.eps = 0.1

    def expected(self) -> dict[str, list[Tensor] | Tensor]:
        scale = self.scales.double().requires_grad_() if self.scale else None
        result = {name: [] for name in ('out', 'dq', 'dk', 'dv')}
        dscale = torch.zeros(self.heads, dtype=torch.float64)
        for q, k, v, dout in zip(self.q, self.k, self.v, self.dout):
            inputs = [x.double()[None].requires_grad_() for x in (q, k, v)]
            out = (
                linear_attention(
                    *inputs,
                    scale,
                    'relu' if self.relu else 'identity',
                    'mean' if self.mean else 'clamp',
                    self.denom_min,
                    self.eps,
                )
                * self.factor
            )
            result['out'].append(out[0].detach())
            inputs += [scale] if self.scale else []
            grads = torch.autograd.grad(out, inputs, dout.double()[None], allow_unused=True)
            for name, x, grad in zip(('dq', 'dk', 'dv'), inputs, grads):
                result[name].append(torch.zeros_like(x[0]) if grad is None else grad[0])
            if self.scale and grads[3] is not None:
                dscale += grads[3]
        return result | ({'dscale': dscale} if self.scale else {})

    def case(self) -> Case:
        case = Case('A', self.seed)
        case.add(DTYPES.index(self.dtype), self.heads, *self.dims)
        shape, index = self._layout(case, self.sizes)
        key_shape, key_index = self._layout(case, self.key_sizes)
        case.add(
            self.relu,
            self.mean,
            float(self.denom_min),
            self.eps,
            self.factor,
            self.scales if self.scale else None,
        )
        self.outputs = {}
        for names in (('q', 'k', 'v'), ('out',), ('dout',), ('dq', 'dk', 'dv')):
            keys = [name[-1] in 'kv' for name in names]
            shapes = [
                (
                    *(key_shape if key else shape),
                    self.heads,
                    self.dims[name in ('v', 'dv', 'out', 'dout')],
                )
                for name, key in zip(names, keys)
            ]
            for name, key, tensor in zip(names, keys, self._memory(shapes)):
                indices = key_index if key else index
                if name in ('q', 'k', 'v', 'dout'):
                    for where, image in zip(indices, getattr(self, name)):
                        tensor[where] = image.reshape(tensor[where].shape)
                else:
                    self.outputs[name] = tensor, indices
                strides = list(tensor.stride())
                if self.layout == 'dense':
                    strides.insert(1, 0)
                elif self.layout == 'packed':
                    strides[:0] = 0, 0
                case.add(tensor, tensor.storage_offset(), *strides)
        self.dscale = torch.empty_like(self.scales) if self.scale else None
        case.add(self.dscale)
        return case

    def _layout(self, case, sizes):
        """Adds the layout; returns the shape before the heads and the index of each image in it."""
        if self.layout == 'dense':
            tokens = sizes[0][0] * sizes[0][1] if sizes else 0
            case.add(len(sizes), 1, tokens, None, None)
            return (len(sizes), tokens), list(range(len(sizes)))
        if self.layout == 'packed':
            cu_seqlens = torch.tensor([0, *(h * w for h, w in sizes)]).cumsum(0, dtype=torch.int32)
            bounds = cu_seqlens.tolist()
            total = bounds[-1] + self.tail
            case.add(len(sizes), 1, total, cu_seqlens, None)
            return (total,), [slice(a, b) for a, b in zip(bounds, bounds[1:])]
        height, width = (max(size) + self.tail for size in zip(*sizes))
        case.add(len(sizes), height, width, None, torch.tensor(sizes, dtype=torch.int32))
        return (len(sizes), height, width), [
            (i, slice(h), slice(w)) for i, (h, w) in enumerate(sizes)
        ]

    def _memory(self, shapes):
        """Returns tensors of NaN."""
        like = {'dtype': self.dtype}
        if self.memory == 'projection' and len(shapes) == 3:
            *front, heads, channels = shapes[0]
            return torch.full((*front, 3, heads, channels), torch.nan, **like).unbind(-3)
        tensors = []
        for shape in shapes:
            if self.memory == 'transposed':  # channels are far apart
                x = torch.full((shape[-1], *shape[:-1]), torch.nan, **like).movedim(0, -1)
            elif self.memory == 'unaligned':
                x = torch.full((1 + torch.Size(shape).numel(),), torch.nan, **like)[1:].view(shape)
            else:
                x = torch.full(shape, torch.nan, **like)
            tensors.append(x)
        return tensors

    def results(self) -> dict[str, list[Tensor] | Tensor]:
        """Returns the results of a run; tokens in no image must be zero."""
        result = {}
        for name, (tensor, indices) in self.outputs.items():
            rest = tensor.clone()
            result[name] = [tensor[where].reshape(-1, *tensor.shape[-2:]) for where in indices]
            for where in indices:
                rest[where] = 0
            assert (rest == 0).all(), f'{name}: tokens that are in no image'
        return result | ({'dscale': self.dscale} if self.scale else {})


def run(driver, *calls):
    driver(*[call.case() for call in calls])
    return [call.results() for call in calls]


def relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def check(driver, *calls):
    for call, results in zip(calls, run(driver, *calls)):
        expected = call.expected()
        assert results.keys() == expected.keys()
        for name in expected:
            a, b = results[name], expected[name]
            if name != 'dscale':
                assert [x.shape for x in a] == [x.shape for x in b]
                # Together: some gradients of a lone token are nothing but rounding errors.
                a, b = (torch.cat([x.flatten() for x in images]) for images in (a, b))
            tolerance = TOLERANCES[call.dtype] * (1 if name == 'out' else 5)
            assert relative_error(a, b) < tolerance, (name, call)


def assert_same(a, b):
    """Bitwise, except that all NaNs are equal."""
    for name in a:
        for x, y in zip(a[name], b[name]):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize('dims', DIMS, ids=str)
def test_head_sizes(driver, dims):
    # One small image is enough where a token is a lot of work.
    large = max(dims) > 64
    check(
        driver,
        *(
            Call(
                layout,
                [(3, 17)] if large else SIZES[layout],
                dims=dims,
                heads=1 if large else 2,
                dtype=dtype,
                tail=layout != 'dense',
            )
            for layout, dtype in zip([*SIZES, 'packed'], DTYPES)
        ),
    )


@pytest.mark.parametrize('layout', SIZES)
def test_options(driver, layout):
    check(
        driver,
        *(
            Call(
                layout,
                SIZES[layout][:2],
                relu=relu,
                mean=mean,
                scale=scale,
                factor=1.0 if scale else -1.5,
            )
            for relu in (True, False)
            for mean in (True, False)
            for scale in (True, False)
        ),
    )


@pytest.mark.parametrize('memory', ['projection', 'transposed', 'unaligned'])
def test_strides(driver, memory):
    calls = [
        Call(layout, SIZES[layout], dims=(dim, dim), dtype=dtype, memory=memory, tail=2)
        for layout, dtype, dim in [
            ('dense', torch.float32, 32),
            ('packed', torch.float16, 40),
            ('padded', torch.bfloat16, 8),
            ('dense', torch.float64, 3),
        ]
    ]
    check(driver, *calls)
    # Other kinds of access, the same numbers.
    for call in calls:
        (plain,) = run(driver, replace(call, memory='contiguous'))
        assert_same(call.results(), plain)


def test_keys_of_another_length(driver):
    check(
        driver,
        Call('dense', [(1, 7)] * 3, [(1, 300)] * 3, dims=(16, 24)),
        Call('dense', [(20, 20)], [(1, 1)], dims=(16, 24), mean=True),
        Call('packed', [(1, 7), (20, 50), (1, 1)], [(30, 20), (1, 1), (1, 40)], dims=(24, 16)),
    )


def test_images_without_queries_or_keys(driver):
    full, none = (5, 60), (0, 0)
    calls = [
        Call('packed', [full, none, full, none], [none, full, full, none], tail=3, mean=mean)
        for mean in (True, False)
    ]
    for call in calls:  # tokens without partners are not read
        for images in (call.q, call.dout, call.k, call.v):
            images[0].fill_(torch.nan)
            images[1].fill_(torch.nan)
    calls += [
        Call('dense', [full] * 2, [none] * 2),
        Call('dense', [none] * 2, [full] * 2),
        Call('dense', [none]),
        Call('packed', [], tail=70),
        Call('packed', []),
        Call('packed', [none] * 3, tail=1),
    ]
    for call, results in zip(calls, run(driver, *calls)):
        for name in ('out', 'dq', 'dk', 'dv'):
            for i, image in enumerate(results[name]):
                if len(call.q[i]) == 0 or len(call.k[i]) == 0:
                    assert (image == 0).all()
                else:
                    assert relative_error(image, call.expected()[name][i]) < 5e-5
        assert results['dscale'].isfinite().all()


@pytest.mark.parametrize(
    'call',
    [
        # several parts, of several tiles
        Call('packed', [(1, 3000), (1, 2), (25, 41)], dims=(16, 16), heads=1),
        Call(
            'padded', [(50, 60), (60, 3)], dims=(32, 32), heads=1, dtype=torch.bfloat16, mean=True
        ),
        Call('dense', [(1, 1100)], dims=(100, 70), heads=1),
        # the most parts
        Call('dense', [(1, 40000)], dims=(3, 3), heads=1),
        # slots by image, though packed
        Call('packed', [(1, 1)] * 40, dims=(3, 3), heads=3),
    ],
    ids=['packed', 'padded', 'dense', 'most parts', 'many images'],
)
def test_long_and_many(driver, call):
    check(driver, call)


def test_any_order_of_threads(driver):
    """Bitwise the same in any order of threads and blocks, and in any layout."""
    base = Call('packed', SIZES['packed'], dims=(20, 20), tail=5)
    calls = [base, replace(base, seed=1), replace(base, seed=2), replace(base, layout='padded')]
    first, *others = run(driver, *calls)
    for other in others:
        assert_same(first, other)
    check(driver, *(replace(base, dims=(70, 70), heads=1, seed=seed) for seed in range(2)))


@pytest.mark.parametrize('layout', ['packed', 'padded'])
def test_images_are_apart(driver, layout):
    """The results of an image are bitwise the same with other images, even NaN or infinite ones."""
    sizes = [(9, 40), (1, 3), (24, 26), (3, 1)]
    together = Call(layout, sizes, dims=(8, 8), tail=1)
    spoilt = replace(together)
    for images in (spoilt.q, spoilt.k, spoilt.v, spoilt.dout):
        images[1][0] = torch.nan
        images[3][0] = torch.inf
    alone = replace(together, sizes=[sizes[2]], key_sizes=None, tail=0)
    for name in ('q', 'k', 'v', 'dout'):
        setattr(alone, name, [getattr(together, name)[2]])
    alone.denom_min, alone.scales = together.denom_min, together.scales
    a, b, c = run(driver, together, spoilt, alone)
    for name in ('out', 'dq', 'dk', 'dv'):
        assert_same({name: [a[name][0], a[name][2]]}, {name: [b[name][0], b[name][2]]})
        assert_same({name: [a[name][2]]}, {name: c[name]})
    assert b['out'][1].isnan().all() and b['dk'][1].isnan().any()


def test_cu_seqlens_outside_the_tensor(driver):
    """They are clamped to it: nothing outside is accessed."""
    case = Call('packed', [(1, 40), (1, 30)]).case()
    for cu_seqlens in ([5, -3, 700], [-1, 70, 0], [900, 900, 900]):
        for array in case.arrays[:2]:  # of queries and of keys
            array.copy_(torch.tensor(cu_seqlens, dtype=torch.int32).view(torch.uint8))
        driver(case)


@dataclass
class Map:
    """One call of the focused feature map, forward and backward."""

    rows: int
    channels: int
    dtype: torch.dtype = torch.float32
    power: float = 3.0
    pos_rows: int = 0
    stride: int = 0  # from row to row; 0: as many as channels
    seed: int = 0

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.rows + self.channels)

        def random(*shape, dtype):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        acc = torch.promote_types(self.dtype, torch.float32)
        stride = self.stride or self.channels
        # Ends with the channels of the last row.
        memory = random(max(0, self.rows * stride - (stride - self.channels)), dtype=self.dtype)
        self.x = memory.as_strided((self.rows, self.channels), (stride, 1))
        self.dout = random(self.rows, self.channels, dtype=self.dtype)
        self.s = random(self.channels, dtype=acc)
        self.pos = random(self.pos_rows, self.channels, dtype=acc) if self.pos_rows else None

    def case(self) -> Case:
        case = Case('F', self.seed)
        self.out, self.dx = (torch.full_like(self.dout, torch.nan) for _ in range(2))
        self.ds = torch.full_like(self.s, torch.nan)
        case.add(
            DTYPES.index(self.dtype),
            self.rows,
            self.channels,
            self.pos_rows or self.rows,
            self.power,
            self.x,
            0,
            0,
            0,
            0,
            0,
            0,
            self.x.stride(0),
            self.s,
            self.pos,
            self.out,
            self.dout,
            self.dx,
            self.ds,
        )
        return case

    def check(self):
        x, s = (t.double().requires_grad_() for t in (self.x, self.s))
        pos = None
        if self.pos_rows:
            pos = self.pos.double().repeat(-(-self.rows // self.pos_rows), 1)[: self.rows]
        out = focused_feature_map(x, s, self.power, pos)
        dx, ds = torch.autograd.grad(out, (x, s), self.dout.double())
        for name, expected in (('out', out), ('dx', dx), ('ds', ds)):
            actual = getattr(self, name)
            tolerance = TOLERANCES[self.dtype if name != 'ds' else actual.dtype]
            tolerance *= 1 if name == 'out' else 5
            assert relative_error(actual, expected.detach()) < tolerance, (name, self)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_focused_map(driver, dtype):
    calls = [Map(37, channels, dtype) for channels in (1, 5, 8, 24, 33, 96, 260)]
    calls += [Map(70, 40, dtype, power=power) for power in (1.0, 2.5, 8.0)]
    calls += [
        Map(50, 24, dtype, pos_rows=7),
        Map(13, 5, dtype, pos_rows=13, stride=11),
        Map(20, 32, dtype, stride=96),
        Map(20, 32, dtype, stride=97),
    ]
    calls += [Map(0, 8, dtype), Map(1, 8, dtype)]
    driver(*[call.case() for call in calls])
    for call in calls:
        call.check()


def test_focused_map_of_many_rows_and_channels(driver):
    calls = [
        Map(40000, 3),
        Map(17000, 8, torch.float16),
        # sums of fewer teams, and of none in shared memory
        Map(9, 5000),
        Map(5, 13000),
        Map(3, 26000),
        Map(2, 26001, torch.float64),
    ]
    driver(*[call.case() for call in calls])
    for call in calls:
        call.check()


def test_focused_map_bits(driver):
    """The same for any order of threads; those of a row whatever is in others."""
    calls = [Map(300, 20, seed=seed) for seed in range(3)]
    calls[2].x[5] = torch.nan
    driver(*[call.case() for call in calls])
    a, b, c = calls
    for name in ('out', 'dx', 'ds'):
        assert torch.equal(getattr(a, name), getattr(b, name))
    others = torch.arange(300) != 5
    assert torch.equal(a.out[others], c.out[others]) and torch.equal(a.dx[others], c.dx[others])
    assert c.out[5].isnan().all()


def test_focused_map_of_large_and_equal_values(driver):
    large, zero = Map(30, 48, torch.float16), Map(30, 48)
    large.x.mul_(15000)
    large.s.abs_().add_(1)  # so that the result fits, too
    zero.x.fill_(-1.0)  # only the 1e-6 remains
    driver(large.case(), zero.case())
    assert large.out.isfinite().all() and large.x.max() > 30000
    large.check()
    u = 1e-6 / torch.nn.functional.softplus(zero.s)
    torch.testing.assert_close(zero.out, (u**3 * u.norm() / (u**3).norm()).expand(30, -1))
    assert (zero.dx == 0).all()
