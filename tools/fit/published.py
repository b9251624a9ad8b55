"""Reads the published tables, and draws the sample of them that the tests keep: `python -m tools.fit.published TABLES`.

A table is a parquet file, or a CSV file of the same name and columns as in the sample.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.validate import read_table
from pyperf_suite.errors import UserError

Columns = dict[str, NDArray[Any]]

SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "published"
GPUS = ("a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s")
# Of the ascending n and k of products every third, so that sites keep neighbours, in fp8 every seventh and every third
# m; columns held for true, and of the H200 the one that ran for a second at each point.
EVERY_SITE = {"bf16": (3, 1), "fp8": (7, 3)}
PRODUCT_TIMES = ("trtllm_1.3.0rc20", "sglang_0.5.14", "vllm_0.24.0")
PRODUCT_TIMES_OF = {
    "a100_sxm": ("trtllm_1.0.0", "sglang_0.5.10", "vllm_0.14.0"),
    "h200_sxm": (*PRODUCT_TIMES, "vllm_0.22.0"),
}
# Heads, key-value heads and head dimension of attention, all batches at every other length.
HEADS = {(64, 8, 64), (40, 40, 128), (32, 8, 128), (32, 4, 192), (16, 8, 256)}
LENGTHS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384)
LIBRARIES = {("trtllm", "1.3.0rc20"), ("sglang", "0.5.14"), ("vllm", "0.24.0")}
LIBRARIES_OF_A100 = {("trtllm", "1.0.0"), ("sglang", "0.5.10"), ("vllm", "0.14.0")}
ATTENTION = ("backend_lib", "backend_version", "kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads",
             "head_dim", "kv_cache_dtype", "latency_us")  # fmt: skip
# Of windows the shapes of single models: GPT-OSS, MiMo, Gemma 3 and Llama 4.
WINDOWS = {(64, 8, 64), (40, 8, 128), (32, 4, 192), (16, 8, 256)}
WINDOW = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype",
          "sglang_0.5.14", "trtllm_1.3.0rc20", "vllm_0.24.0")  # fmt: skip
# Experts of three models, on few ranks: hidden, inter, topk.
EXPERTS = {(2048, 768, 8), (4096, 2048, 8), (5120, 8192, 1)}
EXPERT_TOKENS = (16, 1024, 16384)
EXPERT_RANKS = {(1, 1), (8, 1), (1, 8), (2, 4)}
EXPERT_COLUMNS = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
                  "distribution", "gated")  # fmt: skip

# Heads, key-value heads, head_dim and window of decode; heads and lengths of latent attention, whose tables of decode
# count the new token too in what they time with projections.
SITE_OF_DECODE = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
DECODES = {(32, 8, 128, 0), (64, 8, 64, 128)}
LATENT_HEADS, LATENT_LENGTHS = (16, 64), (128, 129, 2048, 2049, 4096, 16384, 16385)
FIGURES = 4


# Training runs: of those under a licence, with a model's dimensions, every third one and all of the smallest source.
RUNS = "training_published.csv"
EVERY_RUN, WHOLE_SOURCE = 3, "pytorch/torchtitan"


def read_columns(folder: Path, name: str) -> Columns:
    """A table's columns; empty numbers are NaN. Raises UserError if the folder does not have it."""
    for path in (folder / f"{name}.parquet", folder / f"{name}.csv"):
        if path.is_file():
            return read_table(path)
    raise UserError(f"{folder} has no {name}.parquet: name the folder of the published tables.")


def tables_like(folder: Path, prefix: str) -> dict[str, str]:
    """The names of a folder's tables that begin so, by the GPU that follows in the name."""
    found = {path.stem for path in folder.glob(f"{prefix}*") if path.suffix in (".parquet", ".csv")}
    return {name.removeprefix(prefix): name for name in sorted(found)}


def versions(columns: Columns, library: str) -> list[str]:
    """A library's columns, the newest first."""
    own = [name for name in columns if name.startswith(f"{library}_")]
    return sorted(own, key=version_numbers, reverse=True)


def version_numbers(name: str) -> list[int]:
    """The numbers in the name of a column or a version, by which they are in order."""
    return [int(number) for number in re.findall(r"\d+", name)]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """The same row by row, in Python's own numbers."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def draw_sample(tables: Path, sample: Path = SAMPLE) -> None:
    """Write the sample: whole sites of products, whole head shapes of attention, all of the smaller tables."""
    for gpu in GPUS:
        for dtype in EVERY_SITE:
            _draw_products(tables, sample, gpu, dtype)
        columns = read_columns(tables, f"attention_prefill_bf16_{gpu}")
        kept = _sampled_heads(columns, HEADS)
        wanted = LIBRARIES_OF_A100 if gpu == "a100_sxm" else LIBRARIES
        kept &= _among(columns, ("backend_lib", "backend_version"), wanted)
        _write(sample, f"attention_prefill_bf16_{gpu}", columns, kept, ATTENTION)
    for gpu, name in tables_like(tables, "attention_window_bf16_").items():
        columns = read_columns(tables, name)
        _write(sample, f"attention_window_bf16_{gpu}", columns, _sampled_heads(columns, WINDOWS), WINDOW)
    for name in (*tables_like(tables, "moe_bf16_").values(), *tables_like(tables, "moe_fp8_").values()):
        columns = read_columns(tables, name)
        kept = _among(columns, ("hidden_size", "inter_size", "topk"), EXPERTS)
        kept &= _among(columns, ("moe_tp_size", "moe_ep_size"), EXPERT_RANKS)
        kept &= np.isin(columns["num_tokens"], EXPERT_TOKENS) & (columns["distribution"] != "power_law_1.01")
        libraries = [column for column in columns if column.startswith(("trtllm_", "sglang_", "vllm_"))]
        dtype = ("moe_dtype",) if "moe_dtype" in columns else ()
        _write(sample, name, columns, kept, (*EXPERT_COLUMNS, *dtype, *libraries))
    draw_decode(tables, sample)
    columns = read_columns(tables, "collectives")
    kept = (columns["file"] == "nccl_perf") & (columns["dtype"] == "half")
    names = ("gpu", "file", "lib_version", "op_name", "dtype", "num_gpus", "bytes", "latency_us")
    _write(sample, "collectives", columns, kept, names)
    for name in ("train_iteration_multi_node_a100", "train_iteration_single_node_a100"):
        columns = read_columns(tables, name)
        _write(sample, name, columns, np.ones(len(columns["GPUs"]), dtype=bool), tuple(columns))
    for name in ("sdpa_h200.csv", "nccl_tests_8xa100.csv"):
        (sample / name).write_bytes((tables / name).read_bytes())
    _draw_runs(tables / RUNS, sample / RUNS)


def _draw_runs(table: Path, sample: Path) -> None:
    with table.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["licence"] and row["layers"]]
    kept = [
        row
        for place, row in enumerate(rows)
        if place % EVERY_RUN == 0 or row["ran"] == "no" or WHOLE_SOURCE in row["source"]
    ]
    with sample.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(kept[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def _draw_products(tables: Path, sample: Path, gpu: str, dtype: str) -> None:
    name = f"gemm_{dtype}_{gpu}"
    if name not in {path.stem for path in tables.glob("gemm_*")}:
        return
    columns = read_columns(tables, name)
    every_site, every_m = EVERY_SITE[dtype]
    kept = (columns["m"] >= 1) & np.isin(columns["m"], np.unique(columns["m"][columns["m"] >= 1])[::every_m])
    for size in ("n", "k"):
        kept &= np.isin(columns[size], np.unique(columns[size])[::every_site])
    times = PRODUCT_TIMES_OF.get(gpu, PRODUCT_TIMES)
    _write(sample, name, columns, kept, (*("m", "n", "k"), *(time for time in times if time in columns)))


def _sampled_heads(columns: Columns, shapes: Collection[tuple[Any, ...]]) -> NDArray[np.bool_]:
    return _among(columns, SITE_OF_DECODE[:3], shapes) & np.isin(columns["isl"], LENGTHS)


def _among(columns: Columns, names: tuple[str, ...], wanted: Collection[tuple[Any, ...]]) -> NDArray[np.bool_]:
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return np.array([row in wanted for row in rows])


def draw_decode(tables: Path, sample: Path = SAMPLE) -> None:
    """Write whole sites of the tables of decode and of latent attention."""
    names = [*tables_like(tables, "attention_decode_bf16_").values(), "attention_decode_fp8kv_h100_sxm"]
    for name in (*names, *tables_like(tables, "mla_prefill_").values(), *tables_like(tables, "mla_decode_").values()):
        columns = read_columns(tables, name)
        if name.startswith("mla_"):
            length = columns["isl" if "isl" in columns else "kv_length"]
            kept = np.isin(columns["num_heads"], LATENT_HEADS) & np.isin(length, LATENT_LENGTHS)
        else:
            kept = _among(columns, SITE_OF_DECODE, DECODES)
        times = {of: np.array([float(f"{t:.{FIGURES}g}") for t in columns[of]]) for of in columns if "." in of}
        _write(sample, name, {**columns, **times}, kept, tuple(columns))


def _write(sample: Path, name: str, columns: Columns, kept: NDArray[np.bool_], names: tuple[str, ...]) -> None:
    sample.mkdir(parents=True, exist_ok=True)
    with (sample / f"{name}.csv").open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(names)
        for row in zip(*(columns[column][kept].tolist() for column in names), strict=True):
            writer.writerow(["" if cell is None or cell != cell else cell for cell in row])


if __name__ == "__main__":
    draw_sample(Path(sys.argv[1]))
