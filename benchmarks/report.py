"""Formats the figures of the benchmarks as Markdown tables and a plot."""

from pathlib import Path


def heading(environment: dict) -> str:
    """Two lines about the machine and the versions."""
    load = ', '.join(f'{x:.1f}' for x in environment['load_average'])
    built = ', '.join(f'{name} {value}' for name, value in environment['extension'].items())
    return (
        f'{environment["device"]}; {environment["cores"]} cores, {environment["threads"]} '
        f'threads, load average {load}\ntorch {environment["torch"]}; extension: {built}'
    )


def tables(result: dict) -> str:
    """All tables of one data type."""
    ceilings = result['ceilings']
    parts = [
        f'copy {ceilings["copy_bytes_per_second"] / 1e9:.1f} GB/s, '
        f'{ceilings["matmul_dtype"]} matmul '
        f'{ceilings["matmul_operations_per_second"] / 1e9:.0f} GFLOP/s'
    ]
    for title, make in (
        ('stages of L2ViT-T', _stages),
        ('focused feature map', _focused),
        ('images of unequal sizes', _packed),
        ('softmax attention', _softmax),
        ('resolution, forward + backward', _resolution),
        ('peak memory beside outputs and gradients', _memory),
    ):
        parts.append(f'{result["dtype"]}: {title}\n\n{make(result)}')
    return '\n' + '\n\n'.join(parts)


def table(rows: list[dict[str, str]]) -> str:
    """Rows with the same columns as a Markdown table."""
    columns = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in columns]
    lines = [columns, ['-' * width for width in widths], *([*row.values()] for row in rows)]
    return '\n'.join('| ' + ' | '.join(map(str.ljust, line, widths)) + ' |' for line in lines)


def _ms(seconds: float) -> str:
    return f'{seconds * 1000:.3g}'


def _mb(size: float) -> str:
    return f'{size / 1e6:.3g}'


def _relative(ratio: dict[str, float]) -> str:
    return f'{ratio["of_medians"]:.2f} ({ratio["paired"]:.2f})'


def _floor(row: dict) -> dict[str, str]:
    floor = row['floor']
    return {
        'floor ms': f'{_ms(floor["seconds"])} ({floor["bound_by"]})',
        'compiled / floor': f'{floor["times"]:.2f}',
    }


def _milliseconds(row: dict) -> dict[str, str]:
    return {f'{name} ms': _ms(seconds) for name, seconds in row['seconds'].items()}


def _stages(result: dict) -> str:
    return table(
        [
            {
                'B': str(row['batch']),
                'N': str(row['tokens']),
                'C': str(row['channels']),
                'pass': row['pass'],
                **_milliseconds(row),
                'reference / compiled': _relative(row['relative']['reference']),
                **_floor(row),
            }
            for row in result['stages']
        ]
    )


def _focused(result: dict) -> str:
    return table(
        [
            {
                'N': str(row['tokens']),
                'C': str(row['channels']),
                'pass': row['pass'],
                **_milliseconds(row),
                'reference / compiled': _relative(row['relative']['reference']),
                **_floor(row),
            }
            for row in result['focused']
        ]
    )


def _packed(result: dict) -> str:
    return table(
        [
            {
                'tokens': str(row['tokens']),
                'padding': str(row['padding']),
                'C': str(row['channels']),
                'pass': row['pass'],
                **_milliseconds(row),
                **{
                    f'{name} / one image': _relative(ratio)
                    for name, ratio in row['relative'].items()
                },
            }
            for row in result['packed']
        ]
    )


def _softmax(result: dict) -> str:
    row = result['softmax']
    return table(
        [
            {
                'N': str(row['tokens']),
                'C': str(row['channels']),
                'pass': 'forward',
                **_milliseconds(row),
                'softmax / compiled': _relative(row['relative']['softmax']),
            }
        ]
    )


def _resolution(result: dict) -> str:
    names = ('reference', 'compiled', 'softmax')
    slopes = result['resolution']['slopes']
    rows = [
        {
            'pixels': f'{row["height"]} x {row["width"]}',
            'N': str(row['tokens']),
            **{f'{n} ms': _ms(row['seconds'][n]) if n in row['seconds'] else '' for n in names},
            **{
                f'{n} MB': _mb(row['peak_bytes'][n]) if n in row['peak_bytes'] else ''
                for n in names
            },
        }
        for row in result['resolution']['rows']
    ]
    rows.append(
        {
            'pixels': 'grows like N to the',
            'N': '',
            **{
                f'{n} ms': f'{slopes["seconds"][n]:.2f}' if n in slopes['seconds'] else ''
                for n in names
            },
            **{
                f'{n} MB': f'{slopes["peak_bytes"][n]:.2f}' if n in slopes['peak_bytes'] else ''
                for n in names
            },
        }
    )
    return table(rows)


def _memory(result: dict) -> str:
    return table(
        [
            {
                'N': str(row['tokens']),
                'C': str(row['channels']),
                'outputs and gradients MB': _mb(row['kept_bytes']),
                'extra MB': _mb(row['extra_bytes']),
                'extra / state': f'{row["extra_bytes"] / row["state_bytes"]:.1f}',
            }
            for row in result['memory']
        ]
    )


def batches(figures: dict) -> str:
    """The table of bench_batch.py; its times and memories are relative to the padded batch."""
    rows = []
    for row in figures['rows']:
        rows.append(
            {
                'images': ', '.join(f'{h} x {w}' for h, w in row['sizes']),
                'padded to': '{} x {}'.format(*row['padded']),
                **_ratios(row),
            }
        )
        rows[-1].update({f'{name} time': _relative(ratio) for name, ratio in row['time'].items()})
    rows.insert(-1, {'images': 'all of these', 'padded to': '', **_ratios(figures['total'])})
    return table(rows)


def _ratios(row: dict) -> dict[str, str]:
    found = {
        'padded s': f'{row["seconds"]["padded"]:.2f}',
        'padded GB': f'{row["peak_bytes"]["padded"] / 1e9:.2f}',
        'area': f'{row["area"]:.3f}',
    }
    for of, name in (('seconds', 'time'), ('peak_bytes', 'memory')):
        unit = row[of]['padded']
        found.update(
            {
                f'{way} {name}': f'{value / unit:.3f}'
                for way, value in row[of].items()
                if way != 'padded'
            }
        )
    return found


def plot(figures: dict, file: Path) -> None:
    """Time and peak memory of forward + backward against the number of tokens, log-log."""
    from matplotlib.figure import Figure  # only a plot needs it

    results = figures['results']
    figure = Figure(figsize=(10, 4 * len(results)), layout='constrained')
    for result, axes in zip(results, figure.subplots(len(results), 2, squeeze=False)):
        resolution = result['resolution']
        for axis, of, label, unit in (
            (axes[0], 'seconds', 'time, ms', 1e-3),
            (axes[1], 'peak_bytes', 'peak memory, MB', 1e6),
        ):
            for name, slope in resolution['slopes'][of].items():
                points = [
                    (row['tokens'], row[of][name] / unit)
                    for row in resolution['rows']
                    if name in row[of]
                ]
                axis.loglog(*zip(*points), 'o-', label=f'{name}: N^{slope:.2f}')
            axis.set(
                xlabel='tokens N',
                ylabel=label,
                title=f'forward + backward, {resolution["channels"]} channels, {result["dtype"]}',
            )
            axis.grid(alpha=0.3)
            axis.legend()
    figure.savefig(file, dpi=110)
