"""Time and memory of the operators: compiled, in plain PyTorch, and against softmax attention.

Prints tables; docs/op.md says what their columns are.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # torch's profiler is chatty on the standard error

import report
import torch
import torch.nn.functional as F
from measure import Timer, medians, peak_memory, relative, slope
from torch import Tensor

from l2vit_mm.ops import (
    extension,
    focused_feature_map,
    linear_attention,
    linear_attention_qkvpacked,
)

HEAD_DIM = 32


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured, and how long."""

    rounds: int = 40
    budget: float = 7.0  # seconds of one comparison
    copy_bytes: int = 2**29  # of the tensor that is copied for the bandwidth
    matmul_size: int = 2048
    batches: tuple[int, ...] = (1,)
    # (tokens, channels) of the stages of L2ViT-T at 800 x 1216
    stages: tuple[tuple[int, int], ...] = ((60800, 96), (15200, 192), (3800, 384), (950, 768))
    # height and width, in pixels, of the images of a packed batch
    images: tuple[tuple[int, int], ...] = (
        (800, 1216),
        (800, 1088),
        (736, 1120),
        (640, 800),
        (576, 704),
        (608, 800),
        (512, 768),
        (480, 640),
    )
    # of a map at stride 8 with the channels of the second stage
    resolutions: tuple[tuple[int, int], ...] = (
        (256, 256),
        (256, 512),
        (512, 512),
        (640, 640),
        (640, 960),
        (800, 1216),
        (1200, 1600),
        (1600, 2400),
    )
    softmax_limit: float = 5.0  # seconds: softmax attention is left out where it would take longer


def plan(device: torch.device, quick: bool, rounds: int | None) -> Plan:
    options = {}
    if device.type == 'cuda':
        options = dict(budget=1.0, copy_bytes=2**31, matmul_size=8192, batches=(1, 8))
    if quick:
        options.update(
            budget=0.3, softmax_limit=1.0, images=tuple((h // 2, w // 2) for h, w in Plan.images)
        )
    if rounds:
        options.update(rounds=rounds)
    return Plan(**options)


class Inputs:
    """A projection (..., 3C), the gradient of the output, and the ways from one to the other."""

    def __init__(self, tokens: tuple[int, ...], channels: int, device, dtype, **layout) -> None:
        """
        Args:
            tokens (tuple): (B, N) dense, (T,) packed, (B, H, W) padded maps.
            layout: ``cu_seqlens`` or ``valid_hw``.
        """
        heads = channels // HEAD_DIM
        self.qkv = torch.randn(
            *tokens, 3 * channels, device=device, dtype=dtype, requires_grad=True
        )
        self.dout = torch.randn(*tokens, heads, HEAD_DIM, device=device, dtype=dtype)
        self.scale = torch.rand(heads, device=device, requires_grad=True)
        self.layout = layout

    def _projection(self) -> Tensor:
        return self.qkv.unflatten(-1, (3, -1, HEAD_DIM))

    def views(self, backend: str) -> Tensor:
        """The plain way: three views, whose gradients autograd puts together."""
        return linear_attention(
            *self._projection().unbind(-3), scale=self.scale, backend=backend, **self.layout
        )

    def fused(self) -> Tensor:
        return linear_attention_qkvpacked(
            self._projection(), scale=self.scale, backend='compiled', **self.layout
        )

    def softmax(self) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in self._projection().unbind(-3))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def calls(self, *names: str) -> dict:
        ways = {
            'reference': lambda: self.views('reference'),
            'compiled': self.fused,
            'compiled, views': lambda: self.views('compiled'),
            'softmax': self.softmax,
        }
        return {name: ways[name] for name in names}

    def backward(self, way) -> tuple[Tensor, ...]:
        """The output and the gradients of one forward and backward."""
        out = way()
        gradients = torch.autograd.grad(out, (self.qkv, self.scale), self.dout, allow_unused=True)
        return out, *(x for x in gradients if x is not None)  # softmax has no scale


def without_grad(way):
    with torch.no_grad():
        return way()


def passes(inputs: Inputs, calls: dict) -> dict:
    """The calls of both passes, by name of the pass: forward alone, and with backward."""
    return {
        'forward': {n: lambda w=w: without_grad(w) for n, w in calls.items()},
        'forward + backward': {n: lambda w=w: inputs.backward(w) for n, w in calls.items()},
    }


class Bench:
    def __init__(self, plan: Plan, device: torch.device, dtype: torch.dtype, timer: Timer) -> None:
        self.plan, self.device, self.dtype, self.timer = plan, device, dtype, timer
        self.acc_dtype = torch.float64 if dtype == torch.float64 else torch.float32

    def run(self) -> dict:
        """Everything that the tables show."""
        before = self.ceilings()
        result = {'dtype': _name(self.dtype)}
        for part in (
            self.stages,
            self.focused,
            self.packed,
            self.softmax,
            self.resolution,
            self.memory,
        ):
            result[part.__name__] = part()
        after = self.ceilings()
        seconds = medians({name: before[name] + after[name] for name in before})
        result['ceilings'] = {
            'copy_bytes_per_second': 2 * self.plan.copy_bytes / seconds['copy'],
            'matmul_operations_per_second': 2 * self.plan.matmul_size**3 / seconds['matmul'],
            'matmul_dtype': _name(self.acc_dtype),
        }
        for row in result['stages'] + result['focused']:
            add_floor(row, result['ceilings'])
        return result

    def inputs(self, tokens: tuple[int, ...], channels: int, **layout) -> Inputs:
        return Inputs(tokens, channels, self.device, self.dtype, **layout)

    def compare(self, calls: dict, unit: str) -> dict:
        samples = self.timer.interleave(calls, rounds=self.plan.rounds, budget=self.plan.budget)
        return {
            'seconds': medians(samples),
            'unit': unit,
            'relative': relative(samples, unit),
            'samples': samples,
        }

    def stages(self) -> list[dict]:
        rows = []
        for batch in self.plan.batches:
            for tokens, channels in self.plan.stages:
                inputs = self.inputs((batch, tokens), channels)
                calls = inputs.calls('reference', 'compiled', 'compiled, views')
                # A pass reads q, k, v and writes out, backward reads q, k, v, dout and writes
                # dq, dk, dv. A matrix of D x D a head is multiplied with each token twice in
                # forward (state, out), four times in backward (u, dstate, db, dv).
                for (name, of_pass), tensors, products in zip(
                    passes(inputs, calls).items(), (4, 4 + 7), (2, 2 + 4)
                ):
                    rows.append(
                        {
                            'batch': batch,
                            'tokens': tokens,
                            'channels': channels,
                            'pass': name,
                            'bytes': tensors * inputs.dout.nbytes,
                            'operations': products * 2 * inputs.dout.numel() * HEAD_DIM,
                            **self.compare(of_pass, unit='compiled'),
                        }
                    )
        return rows

    def focused(self) -> list[dict]:
        tokens, channels = self.plan.stages[1]
        x, dout = (
            torch.randn(1, tokens, channels, device=self.device, dtype=self.dtype) for _ in range(2)
        )
        s = torch.randn(channels, device=self.device, requires_grad=True)
        x.requires_grad_()

        def forward(backend):
            return focused_feature_map(x, s, backend=backend)

        def forward_backward(backend):
            return torch.autograd.grad(forward(backend), (x, s), dout)

        rows = []
        # forward reads x and writes out, backward reads x and dout and writes dx
        for name, call, tensors in (
            ('forward', lambda b: without_grad(lambda: forward(b)), 2),
            ('forward + backward', forward_backward, 2 + 3),
        ):
            calls = {b: lambda b=b: call(b) for b in ('reference', 'compiled')}
            rows.append(
                {
                    'tokens': tokens,
                    'channels': channels,
                    'pass': name,
                    'bytes': tensors * x.nbytes,
                    'operations': 0,
                    **self.compare(calls, unit='compiled'),
                }
            )
        return rows

    def packed(self) -> list[dict]:
        """Images of unequal sizes against one image of as many tokens."""
        rows = []
        for stage, (_, channels) in enumerate(self.plan.stages):
            sizes = torch.tensor(self.plan.images, dtype=torch.int32) // (4 * 2**stage)
            ends = F.pad(sizes.prod(1).cumsum(0), (1, 0)).to(self.device, torch.int32)
            total, (height, width) = int(ends[-1]), sizes.amax(0).tolist()
            layouts = {
                'one image': self.inputs((1, total), channels),
                'packed': self.inputs((total,), channels, cu_seqlens=ends),
                'padded map': self.inputs(
                    (len(sizes), height, width), channels, valid_hw=sizes.to(self.device)
                ),
            }
            of_layout = {
                name: passes(inputs, inputs.calls('compiled')) for name, inputs in layouts.items()
            }
            for name in ('forward', 'forward + backward'):
                calls = {layout: of_layout[layout][name]['compiled'] for layout in layouts}
                rows.append(
                    {
                        'tokens': total,
                        'padding': len(sizes) * height * width - total,
                        'channels': channels,
                        'pass': name,
                        **self.compare(calls, unit='one image'),
                    }
                )
        return rows

    def softmax(self) -> dict:
        tokens, channels = self.plan.stages[1]
        inputs = self.inputs((1, tokens), channels)
        calls = passes(inputs, inputs.calls('softmax', 'compiled'))['forward']
        return {'tokens': tokens, 'channels': channels, **self.compare(calls, unit='compiled')}

    def resolution(self) -> dict:
        """Time and peak memory of forward + backward against the number of tokens."""
        channels = self.plan.stages[1][1]
        rows, expected_softmax = [], 0.0
        for height, width in self.plan.resolutions:
            tokens = (height // 8) * (width // 8)
            inputs = self.inputs((1, tokens), channels)
            if rows:
                expected_softmax *= (tokens / rows[-1]['tokens']) ** 2
            names = ['reference', 'compiled']
            if expected_softmax < self.plan.softmax_limit:
                names.append('softmax')
            calls = passes(inputs, inputs.calls(*names))['forward + backward']
            seconds = self.compare(calls, unit='compiled')['seconds']
            expected_softmax = seconds.get('softmax', expected_softmax)
            rows.append(
                {
                    'height': height,
                    'width': width,
                    'tokens': tokens,
                    'seconds': seconds,
                    'peak_bytes': {n: peak_memory(c, self.device)[0] for n, c in calls.items()},
                }
            )
        return {
            'channels': channels,
            'rows': rows,
            'slopes': {of: slopes(rows, of) for of in ('seconds', 'peak_bytes')},
        }

    def memory(self) -> list[dict]:
        """Peak extra memory of forward + backward, in units of a state and its sum of keys."""
        channels = self.plan.stages[1][1]
        state_bytes = channels * (HEAD_DIM + 1) * self.acc_dtype.itemsize  # H (D Dv + D) numbers
        rows = []
        for factor in (1, 8, 64):
            inputs = self.inputs((1, factor * self.plan.stages[2][0]), channels)
            call = passes(inputs, inputs.calls('compiled'))['forward + backward']['compiled']
            peak, kept = peak_memory(call, self.device)
            rows.append(
                {
                    'tokens': inputs.qkv.shape[1],
                    'channels': channels,
                    'kept_bytes': kept,
                    'extra_bytes': peak - kept,
                    'state_bytes': state_bytes,
                }
            )
        return rows

    def ceilings(self) -> dict[str, list[float]]:
        """Seconds of a copy and of a matrix product in the type of the sums."""
        source = torch.ones(self.plan.copy_bytes, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        a = torch.randn(
            self.plan.matmul_size, self.plan.matmul_size, device=self.device, dtype=self.acc_dtype
        )
        product = torch.empty_like(a)
        return self.timer.interleave(
            {'copy': lambda: target.copy_(source), 'matmul': lambda: torch.mm(a, a, out=product)},
            rounds=7,
            budget=self.plan.budget,
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')


def slopes(rows: list[dict], of: str) -> dict[str, float]:
    """By name, the slope over the larger half of the sizes that were measured: the small ones are
    mostly the cost of a call."""
    found = {}
    for name in rows[0][of]:
        measured = [row for row in rows if name in row[of]]
        measured = measured[len(measured) // 2 :]
        if len(measured) > 1:
            found[name] = slope(
                [row['tokens'] for row in measured], [row[of][name] for row in measured]
            )
    return found


def add_floor(row: dict, ceilings: dict) -> None:
    """The time that the row's bytes and operations cannot go below."""
    moving = row['bytes'] / ceilings['copy_bytes_per_second']
    computing = row['operations'] / ceilings['matmul_operations_per_second']
    row['floor'] = {
        'seconds': max(moving, computing),
        'bound_by': 'operations' if computing > moving else 'bytes',
        'times': row['seconds']['compiled'] / max(moving, computing),
    }


def environment(device: torch.device) -> dict:
    if device.type == 'cuda':
        name = torch.cuda.get_device_name(device)
    else:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
        name = next(line.split(': ')[1] for line in lines if line.startswith('model name'))
    return {
        'device': name,
        'threads': torch.get_num_threads(),
        'cores': os.cpu_count(),
        'load_average': os.getloadavg(),
        'torch': torch.__version__,
        'extension': extension.build_info(),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument(
        '--dtype',
        nargs='+',
        choices=('float64', 'float32', 'float16', 'bfloat16'),
        help='default: float32; on a GPU also float16 and bfloat16',
    )
    parser.add_argument('--threads', type=int, help="of the CPU; default: torch's own choice")
    parser.add_argument('--rounds', type=int, help='samples of each call, where time allows')
    parser.add_argument('--quick', action='store_true', help='rough figures, under a minute')
    parser.add_argument('--json', type=Path, help='file for all figures, the single samples too')
    parser.add_argument('--plot', type=Path, help='file for time and memory against resolution')
    args = parser.parse_args(argv)

    device = torch.device(args.device)
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: torch finds no GPU')
    missing = extension.missing_for(device)
    if missing:
        parser.error(missing)
    if args.threads:
        torch.set_num_threads(args.threads)
    dtypes = args.dtype or (
        ['float32', 'float16', 'bfloat16'] if args.device == 'cuda' else ['float32']
    )
    figures = {'environment': environment(device), 'results': []}
    print(report.heading(figures['environment']), flush=True)
    timer, planned = Timer(device), plan(device, args.quick, args.rounds)
    for name in dtypes:
        figures['results'].append(Bench(planned, device, getattr(torch, name), timer).run())
        print(report.tables(figures['results'][-1]), flush=True)
        if args.json:  # after each type, so that a run that is stopped leaves something
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(figures, indent=1) + '\n')
    if args.plot:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        report.plot(figures, args.plot)


if __name__ == '__main__':
    main()
