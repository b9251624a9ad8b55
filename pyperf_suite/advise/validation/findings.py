"""Predicted against measured, as sentences and tables: first what became of the candidates, then product by product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyperf_suite.advise.validation.validation import Measured, Product, Validation
from pyperf_suite.spec.findings import Findings, Quantity, Remark, findings, remark
from pyperf_suite.spec.rows import Column, table, wins

# The others are in the records, and in --json.
MOST_PRODUCTS = 20


def validation_findings(names: Sequence[str], validation: Validation) -> Findings:
    """`names` are what the settings are called, in their order, the present one first."""
    measured = validation.settings
    mean, median = validation.error_percent
    count = sum(product.reading is not None for product in validation.products)
    unmeasured = len(validation.products) - count
    products = sorted(validation.products, key=lambda product: -_miss(product))[:MOST_PRODUCTS]
    missed = "" if len(products) == len(validation.products) else f", the {len(products)} missed most of "
    return findings(
        _best(names, measured) if len(measured) > 1 else None,
        remark(
            "The laws missed the {count} measured shapes by {mean} on average, {median} in the median.",
            kind="law",
            count=count,
            mean=Quantity(mean / 100, "%"),
            median=Quantity(median / 100, "%"),
        ),
        remark(
            "{count} shapes keep their predicted time, for not every process could measure them.",
            kind="caution",
            count=unmeasured,
        )
        if unmeasured
        else None,
        table("Candidates, predicted and measured", SETTINGS, list(zip(names, measured, strict=True))),
        table(
            f"Products, predicted and measured{missed}{len(validation.products) if missed else ''}", PRODUCTS, products
        ),
    )


def _best(names: Sequence[str], measured: Sequence[Measured]) -> Remark:
    """The candidate that was measured fastest, and whether that is beyond its interval."""
    place = max(range(1, len(measured)), key=lambda each: measured[each].speedup.value)
    best = measured[place]
    told: dict[str, Any] = {
        "name": names[place],
        "first": names[0],
        "count": len(measured) - 1,
        "faster": best.speedup,
        "predicted": Quantity(best.predicted_speedup, "x", predicted=True),
    }
    if wins(best.speedup):
        return remark("{name} is {faster} as fast as {first}, where {predicted} was predicted.", **told)
    return remark(
        "None of the {count} candidates is faster than {first} beyond the interval; the best, {name}, is {faster} as "
        "fast, where {predicted} was predicted.",
        **told,
    )


SETTINGS = (
    Column("candidate", lambda told: told[0], priority=2),
    Column("predicted a token", lambda told: told[1].predicted_s, "us"),
    Column("measured a token", lambda told: told[1].cost_s, "us"),
    Column("predicted speed", lambda told: told[1].predicted_speedup, "x"),
    Column("measured speed", lambda told: told[1].speedup, "x", priority=2),
    Column("share that was measured", lambda told: told[1].measured_share, "%", priority=0),
)
PRODUCTS = (
    Column("what", lambda product: _what(product), priority=2),
    Column("predicted", lambda product: product.predicted_s, "us"),
    Column("measured", lambda product: _measured(product), "us", priority=2),
    Column("predicted / measured", lambda product: _over(product), "x"),
)


def _measured(product: Product) -> Quantity | None:
    reading = product.reading
    if reading is None:
        return None
    return Quantity(reading.seconds, "us", reading.low, reading.high, len(reading.by_process))


def _over(product: Product) -> float | None:
    return None if product.reading is None else product.predicted_s / product.reading.seconds


def _miss(product: Product) -> float:
    """How far the prediction is from the reading, in its logarithm; what has no reading stands last."""
    return -1.0 if product.reading is None else abs(math.log(product.predicted_s / product.reading.seconds))


def _what(product: Product) -> str:
    p: Any = product.case.parameters
    if product.case.operator == "matmul":
        return f"{p.m}x{p.n}x{p.k} {p.layout} {p.dtype}"
    phase = "backward" if p.backward else "forward"
    return f"attention {phase} {p.batch} x {p.heads} heads ({p.key_heads} key) of {p.head_dim}, {p.seq_q} tokens"
