"""What attention's law errs by on what was left out whole: `python -m tools.fit.attention_left_out TABLES`.

A GPU with all its tables, a head dimension between two others or beyond them, a window. The intervals of
`laws/attention_kernels` for these are half the width that nine of ten errors lie within.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.attention import PLAIN, WINDOWED
from pyperf_suite.laws.attention_kernels import (
    AttentionKernels,
    KernelChoice,
    transferred,
    unpack_attention,
    windowed,
)
from pyperf_suite.laws.calibration import all_shipped
from pyperf_suite.laws.transfers import have_same_kernels
from tools.fit.attention import PrefillTable, read_tables
from tools.fit.fitting import in_words

Floats = NDArray[np.float64]
# What was left out, of which GPU, by which block, and log(measured / predicted) of its rows.
Missed = tuple[str, str, str, Floats]


def left_out(tables_folder: Path) -> Iterator[Missed]:
    """The errors of everything that can be left out of what is shipped."""
    gpus = {each.gpu: find_gpu(each.gpu) for each in all_shipped()}
    laws = {
        (each.gpu, name): unpack_attention(block, name.rpartition(".")[2], gpus[each.gpu])
        for each in all_shipped()
        for name, block in each.blocks.items()
        if name.rpartition(".")[0] in (*PLAIN.values(), *WINDOWED.values())
    }
    for gpu, spec in gpus.items():
        for name, table in read_tables(tables_folder, spec.slug).items():
            law, _, library = name.rpartition(".")
            others = {each: kernels for (each, other), kernels in laws.items() if other == name and each != gpu}
            for like in (True, False):
                alike = {at: kernels for at, kernels in others.items() if have_same_kernels(gpus[at], spec) == like}
                yield from _gpu_left_out(spec, alike, name, table)
            if law in PLAIN.values():
                yield from _widths_left_out(gpu, name, laws[gpu, name], table)
            else:
                cache = next(cache for cache, each in WINDOWED.items() if each == law)
                plain = laws[gpu, f"{PLAIN[cache]}.{library}"]
                yield from _windows_left_out(gpu, name, plain, laws[gpu, name], table)


def _gpu_left_out(
    spec: GpuSpec, others: dict[str, AttentionKernels], name: str, table: PrefillTable
) -> Iterator[Missed]:
    if others:
        moved = transferred(spec, others, "bf16")
        errors = [
            _missed([KernelChoice(1.0, kernel)], table.take(rows))
            for kernel in moved.kernels
            if (rows := (table.head_dim == kernel.head_dim) & (table.window == kernel.window)).any()
        ]
        if errors:
            yield f"GPU, {moved.origin.split(',')[0]}", spec.name, name, np.concatenate(errors)


def _widths_left_out(gpu: str, name: str, law: AttentionKernels, table: PrefillTable) -> Iterator[Missed]:
    for width, rows in _by_width(table):
        other = replace(law, kernels=[each for each in law.kernels if each.head_dim != width])
        if other.kernels and not law.doubtful(width):
            is_between = min(other.widths) < width < max(other.widths)
            yield (
                f"width {'between' if is_between else 'beyond'}",
                gpu,
                f"{name} {width}",
                _missed(other.at_width(width), rows),
            )


def _windows_left_out(
    gpu: str, name: str, plain: AttentionKernels, law: AttentionKernels, table: PrefillTable
) -> Iterator[Missed]:
    for width, of_width in _by_width(table):
        for window in np.unique(of_width.window):
            rows = of_width.take((of_width.window == window) & (of_width.sizes[:, 1] > window))
            if rows.seconds.size and width in plain.widths:
                rest = [each for each in law.kernels if (each.head_dim, each.window) != (width, window)]
                choices = windowed(plain, replace(law, kernels=rest), width, int(window), rows.shape().seq_k)
                how = "window, another known" if any(each.head_dim == width for each in rest) else "window"
                yield how, gpu, f"{name} {width} {window}", _missed(choices, rows)


def _by_width(table: PrefillTable) -> Iterator[tuple[int, PrefillTable]]:
    for width in np.unique(table.head_dim):
        yield int(width), table.take(table.head_dim == width)


def _missed(choices: Sequence[KernelChoice], rows: PrefillTable) -> Floats:
    predicted = sum(each.weight * each.kernel.seconds(rows.shape()) for each in choices)
    return np.asarray(np.log(rows.seconds / predicted))


def main() -> None:
    """Print each, and all of one sort together."""
    by_sort: dict[str, list[Floats]] = {}
    for sort, gpu, name, missed in left_out(Path(sys.argv[1])):
        print(f"{sort}: {gpu} {name}: {in_words(missed)}", flush=True)
        by_sort.setdefault(sort.split(",")[0], []).append(missed)
    for sort, errors in by_sort.items():
        print(f"ALL {sort}: {in_words(np.concatenate(errors))}")


if __name__ == "__main__":
    main()
