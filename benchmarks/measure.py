"""Time and memory of calls on a CPU or a GPU, taken so that calls can be compared."""
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

Samples = dict[str, list[float]]  # seconds of each call, one a round


class Timer:
    """Seconds that a call takes.

    On the CPU calls are repeated to fill 10 ms: what fits into the caches stays there. On a GPU one
    call is timed by events, behind a write to 4 GB. That empties the L2 cache, and it keeps the
    GPU busy while the call is being queued, so that the time is the GPU's own.
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

    def interleave(self, calls: dict[str, Callable[[], object]], *, rounds: int,
                   budget: float) -> Samples:
        """Times calls in turn, so that what else the machine does meets all of them alike.

        Every other round runs backwards.

        Args:
            calls (dict): what to call, by name.
            rounds (int): how many samples of each, where the budget allows it.
            budget (float): seconds for all of them together; three rounds there are in any case.
        """
        repeats, seconds = {}, {}
        for name, call in calls.items():
            seconds[name] = self(call)
            if seconds[name] < 0.1:  # else the first call was warm-up enough
                seconds[name] = self(call)
            repeats[name] = math.ceil(0.01 / seconds[name])
        a_round = sum(repeats[name] * seconds[name] for name in calls)
        rounds = max(3, int(min(rounds, budget / a_round)))
        samples: Samples = {name: [] for name in calls}
        for index in range(rounds):
            for name in list(calls)[::1 if index % 2 == 0 else -1]:
                samples[name].append(self(calls[name], repeats[name]))
        return samples


def medians(samples: Samples) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in samples.items()}


def relative(samples: Samples, unit: str) -> dict[str, dict[str, float]]:
    """How many times the time of the call ``unit`` each other one takes.

    Returns:
        dict: for each other name, ``of_medians``: the ratio of the medians; and ``paired``: the
        median of the ratios within a round, in which slow phases of the machine cancel out.
    """
    return {
        name: {
            'of_medians': statistics.median(times) / statistics.median(samples[unit]),
            'paired': statistics.median(a / b for a, b in zip(times, samples[unit]))
        } for name, times in samples.items() if name != unit
    }


def peak_memory(call: Callable[[], Sequence[torch.Tensor]],
                device: torch.device) -> tuple[int, int]:
    """The most bytes that a call holds at one time, and how many of them it returns.

    Exact: every allocation of torch's counts, inside operators too.
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
    """The power of x that y grows with: of the least-squares line of log y over log x."""
    xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    return statistics.linear_regression(xs, ys).slope
