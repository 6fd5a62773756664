"""Measures time and memory of calls on a CPU or a GPU so that calls can be compared."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

Samples = dict[str, list[float]]  # seconds of each call, one sample per round


class Timer:
    """Measures how many seconds a call takes.

    On the CPU, calls are repeated to fill 10 ms, so that what fits into the caches stays there. On
    a GPU, events time one call after a write to 4 GB. The write empties the L2 cache and keeps the
    GPU busy while the call is queued, so that the time is that of the GPU alone.

    Args:
        device (torch.device): where the calls run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == 'cuda':
            self._flush = torch.empty(4_000_000_000, dtype=torch.int8, device=device)

    def __call__(self, call: Callable[[], object], repeats: int = 1) -> float:
        if self.device.type == 'cuda':
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            call()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1000
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def interleave(
        self, calls: dict[str, Callable[[], object]], *, rounds: int, budget: float
    ) -> Samples:
        """Times calls in turn, so that other load of the machine affects all of them alike.

        Every other round runs in reverse order.

        Args:
            calls (dict): functions by name.
            rounds (int): number of samples of each call, if the budget allows it.
            budget (float): seconds for all calls together; there are at least three rounds.

        Returns:
            dict: samples by name, in seconds.
        """
        repeats, seconds = {}, {}
        for name, call in calls.items():
            seconds[name] = self(call)
            if seconds[name] < 0.1:  # the first call was the warm-up
                seconds[name] = self(call)
            repeats[name] = math.ceil(0.01 / seconds[name])
        a_round = sum(repeats[name] * seconds[name] for name in calls)
        rounds = max(3, int(min(rounds, budget / a_round)))
        samples: Samples = {name: [] for name in calls}
        for index in range(rounds):
            for name in list(calls)[:: 1 if index % 2 == 0 else -1]:
                samples[name].append(self(calls[name], repeats[name]))
        return samples


def medians(samples: Samples) -> dict[str, float]:
    """Median time of each call in seconds."""
    return {name: statistics.median(times) for name, times in samples.items()}


def relative(samples: Samples, unit: str) -> dict[str, dict[str, float]]:
    """Times of the other calls, relative to the call ``unit``.

    Returns:
        dict: for each other name, ``of_medians``, the ratio of the medians, and ``paired``, the
        median of the ratios within a round, in which slow phases of the machine cancel out.
    """
    return {
        name: {
            'of_medians': statistics.median(times) / statistics.median(samples[unit]),
            'paired': statistics.median(a / b for a, b in zip(times, samples[unit])),
        }
        for name, times in samples.items()
        if name != unit
    }


def peak_memory(
    call: Callable[[], Sequence[torch.Tensor]], device: torch.device
) -> tuple[int, int]:
    """Peak memory of a call, and the memory of the tensors (any shapes) that it returns, in bytes.

    It is exact: it counts every allocation of torch, also inside operators.
    """
    call()
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = call()
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            kept = call()
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == '[memory]']
        events.sort(key=lambda event: event.start_ns())
        peak = max(itertools.accumulate(event.nbytes() for event in events))
    return peak, sum(x.nbytes for x in kept)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent p of y ~ x^p: the slope of the least-squares line of log y over log x."""
    xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    return statistics.linear_regression(xs, ys).slope
