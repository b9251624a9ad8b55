"""Reads the published tables of matrix products: one column a re-measurement, of which some are held for true."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from tools.fit.published import read_columns, tables_like

ORIGIN = "ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0, NVIDIA)"
# Re-measurements with random weights, the quietest first: others had weights that were never set, which draw less
# power and run faster. The A100 has but one.
TRUTHS = ("trtllm_1.3.0rc20", "sglang_0.5.14")
TRUTHS_WITHOUT_THESE = ("sglang_0.5.10",)


@dataclass(frozen=True)
class GemmTable:
    """The products of one dtype on one GPU: sizes, and seconds of each column held for true, NaN where it has none.

    `columns_s` has a row for each product and a column for each of the `truths`; `seconds` is their median. `beside_s`
    has the columns that are not held for true: their levels are wrong, but they repeat what a product has of its own.
    """

    gpu: GpuSpec
    dtype: str
    truths: tuple[str, ...]
    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    columns_s: NDArray[np.float64]
    beside_s: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of each product the median of what is held for true."""
        return np.asarray(np.nanmedian(self.columns_s, axis=1))

    @property
    def origin(self) -> str:
        """The table and the columns taken from it."""
        beside = ", steadied by its other columns" if self.beside_s.shape[1] else ""
        return f"{ORIGIN}, {self.dtype} on {self.gpu.name}, {', '.join(self.truths)}{beside}"

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> GemmTable:
        """The products chosen by mask or number."""
        return GemmTable(
            *(self.gpu, self.dtype, self.truths),
            *(column[chosen] for column in (self.m, self.n, self.k, self.columns_s, self.beside_s)),
        )


def gemm_tables(folder: Path) -> list[GemmTable]:
    """Every table of products in a folder, by name. Raises UserError for one of an unknown GPU."""
    return [
        read_gemm_table(folder, name, dtype, find_gpu(gpu.replace("_", " ")))
        for dtype in ("bf16", "fp8")
        for gpu, name in tables_like(folder, f"gemm_{dtype}_").items()
    ]


def read_gemm_table(folder: Path, name: str, dtype: str, gpu: GpuSpec) -> GemmTable:
    """One table; rows without tokens (the H100's has some) and without a column held for true are left out."""
    columns = read_columns(folder, name)
    truths = TRUTHS if all(name in columns for name in TRUTHS) else TRUTHS_WITHOUT_THESE
    beside = [name for name in columns if name not in ("m", "n", "k", *truths)]
    m, n, k, *times = (columns[name].astype(np.float64) for name in ("m", "n", "k", *truths, *beside))
    columns_s, beside_s = np.split(np.stack(times, axis=1) * 1e-6, [len(truths)], axis=1)
    table = GemmTable(gpu, dtype, truths, m, n, k, columns_s, beside_s)
    return table.rows((m >= 1) & np.isfinite(columns_s).any(axis=1))
