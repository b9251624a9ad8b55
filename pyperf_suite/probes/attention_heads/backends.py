"""Implementations of attention beside each other: what the default picks, softmax's share, and the products' tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyperf_suite.laws.matmul.tiling import Tile, tile_efficiency
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes.attention_heads.sweeps import Setting
from pyperf_suite.spec.rows import Reading, speedup, wins

DEFAULT = "sdpa_default"

# What a user can have instead of the default without a kernel of their own.
CHOICES = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math", "flex")

# Tiles are told for the product that they fill worst; well-filled ones explain nothing.
WELL_FILLED = 0.95


def default_sentences(found: Iterable[Reading]) -> list[str]:
    """Which backends torch picked by itself, and where another was faster beyond the interval."""
    sentences = []
    for kernel, cases in _by_kernel(found).items():
        picked: dict[str, int] = {}
        beaten: list[tuple[Ratio, Reading, str]] = []
        for by_name in cases:
            default = by_name.get(DEFAULT)
            if default is None:
                continue
            path = str(default.kernel.get("path", "a backend it does not tell"))
            picked[path] = picked.get(path, 0) + 1
            ratios = {name: speedup(default, by_name[name]) for name in CHOICES if name in by_name}
            known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
            if known:
                name = max(known, key=lambda each: known[each].value)
                if wins(known[name]):
                    beaten.append((known[name], default, name))
        if picked:
            told = ", ".join(f"{path} for {count}" for path, count in sorted(picked.items()))
            sentences.append(f"{DEFAULT} ({kernel}) picked {told} of {sum(picked.values())} cases" + _beaten(beaten))
    return sentences


def softmax_sentences(found: Iterable[Reading]) -> list[str]:
    """Softmax's share of the two-product form, 1 − t(products)/t(whole), from narrow heads to wide ones."""
    sentences = []
    for kernel, cases in _by_kernel(found).items():
        shares: dict[str, list[tuple[int, str]]] = {}
        for by_name in cases:
            whole, products = by_name.get("two_gemm"), by_name.get("two_gemm_products")
            ratio = speedup(whole, products) if whole is not None and products is not None else None
            if whole is not None and ratio is not None:
                p = whole.case.parameters
                told = f"{_share(ratio.value)} [{_share(ratio.low)}, {_share(ratio.high)}] at {p.heads} x {p.head_dim}"
                what = f"{Setting.of(whole).what}, {_pass(whole)}"
                shares.setdefault(what, []).append((p.head_dim, told))
        for what, told_shares in shares.items():
            told = ", ".join(text for _, text in sorted(told_shares))
            sentences.append(f"Softmax and mask take {told} of two_gemm's time ({kernel}, {what}).")
    return sentences


def tile_sentences(found: Iterable[Reading]) -> list[str]:
    """Where the library's tiles for P·V do not fill with head_dim, which is the saw-tooth of the two-product form."""
    filled: dict[tuple[str, int], float] = {}
    for reading in found:
        p = reading.case.parameters
        products = reading.kernel.get("details", {}).get("products", ())
        if reading.case.implementation == "two_gemm" and not p.backward and len(products) > 1:
            tile = _tile_of(products[-1])
            if tile is not None:
                efficiency = float(tile_efficiency(p.seq_q * p.group, p.head_dim, tile))
                filled[f"{tile.m}x{tile.n}", p.head_dim] = efficiency
    poor = {key: share for key, share in filled.items() if share < WELL_FILLED}
    if not poor:
        return []
    told = ", ".join(
        f"{share:.0%} at head_dim {head_dim} in tiles of {tile}"
        for (tile, head_dim), share in sorted(poor.items(), key=lambda item: item[0][1])
    )
    return [f"Of what two_gemm's product P·V computes, its result is {told}."]


def _tile_of(product: Mapping[str, Any]) -> Tile | None:
    """The output tile, rows by columns of a row-major result (see operators/matmul/kernel_names.py for the order)."""
    tile = product.get("tile")
    if not tile or len(tile) < 2:
        return None
    rows_first = product.get("family") == "nvjet" and str(product.get("name", "")).endswith("N")
    m, n = tile[:2] if rows_first else tile[1::-1]
    return Tile(m, n, 1)


def _by_kernel(found: Iterable[Reading]) -> dict[str, list[dict[str, Reading]]]:
    """Readings of the same case by implementation, under its dtype, mode and workers; cases in a stable order."""
    cases: dict[str, dict[str, dict[str, Reading]]] = {}
    for reading in found:
        case = reading.case
        p = case.parameters
        if p.blocks is None:
            kernel = p.dtype + ("" if case.mode == "burst" else f", {case.mode}")
            kernel += f", {p.workers} workers" if p.workers > 1 else ""
            cases.setdefault(kernel, {}).setdefault(f"{p}", {})[case.implementation] = reading
    return {kernel: [cases[kernel][key] for key in sorted(cases[kernel])] for kernel in sorted(cases)}


def _beaten(beaten: Sequence[tuple[Ratio, Reading, str]]) -> str:
    if not beaten:
        return "; no other backend measured was faster beyond the interval."
    ratio, default, name = max(beaten, key=lambda each: each[0].value)
    p = default.case.parameters
    return (
        f"; another was faster in {len(beaten)}, most {name} at {p.heads} x {p.head_dim} in {_pass(default)} "
        f"({Setting.of(default).what}): {ratio} x."
    )


def _pass(reading: Reading) -> str:
    return "backward" if reading.case.parameters.backward else "forward"


def _share(ratio: float) -> str:
    return f"{max(0.0, 1 - 1 / ratio):.0%}"
