"""Predicted against measured, as sentences and tables: first what became of the candidates, then product by product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyperf_suite.advise.validation.validation import Measured, Product, Validation
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import wins

SETTINGS = (
    "candidate",
    "predicted us/token",
    "measured us/token",
    "predicted work a second",
    "measured work a second",
    "measured share",
)
# The others are in the records, and in --json.
MOST_PRODUCTS = 20
PRODUCTS = ("what", "predicted us", "measured us", "predicted / measured")


def validation_findings(names: Sequence[str], validation: Validation) -> Findings:
    """`names` are what the settings are called, in their order, the present one first."""
    measured = validation.settings
    mean, median = validation.error_percent
    count = sum(product.reading is not None for product in validation.products)
    sentences = [_verdict(names, measured)] if len(measured) > 1 else []
    sentences.append(
        f"The laws predicted the {count} measured shapes with an error of {mean:.1f} % (median {median:.1f} %)."
    )
    unmeasured = len(validation.products) - count
    if unmeasured:
        sentences.append(
            f"{unmeasured} shape{'s keep their' if unmeasured > 1 else ' keeps its'} predicted time, for not every "
            "process could measure them."
        )
    settings = tuple(_setting_row(name, each, measured[0]) for name, each in zip(names, measured, strict=True))
    products = sorted(validation.products, key=lambda product: -_miss(product))[:MOST_PRODUCTS]
    which = (
        f", the {len(products)} missed most of {len(validation.products)}" if unmeasured + count > len(products) else ""
    )
    return Findings(
        tuple(sentences),
        (
            Table("Candidates, predicted and measured", SETTINGS, settings),
            Table(
                f"Products, predicted and measured{which}",
                PRODUCTS,
                tuple(_product_row(product) for product in products),
            ),
        ),
    )


def _verdict(names: Sequence[str], measured: Sequence[Measured]) -> str:
    """The candidate that was measured fastest, and whether that is beyond its interval."""
    place = max(range(1, len(measured)), key=lambda each: measured[each].speedup.value)
    best = measured[place]
    if wins(best.speedup):
        return (
            f"{names[place]} is measured to do its work at {_rate(best.speedup)} the rate of {names[0]}, where "
            f"{best.predicted_speedup:.3f} x was predicted."
        )
    return (
        f"None of the {len(measured) - 1} candidates is measured to be faster than {names[0]} beyond the interval; the "
        f"best, {names[place]}, at {_rate(best.speedup)} its rate, where {best.predicted_speedup:.3f} x was predicted."
    )


def _rate(speedup: Ratio) -> str:
    return f"{speedup.value:.3f} x ({speedup.low:.3f} to {speedup.high:.3f})"


def _setting_row(name: str, each: Measured, first: Measured) -> tuple[str, ...]:
    micro = each.cost_s * 1e6
    present = each is first
    return (
        name,
        f"{each.predicted_s * 1e6:.4g}",
        f"{micro.value:.4g} ({micro.low:.4g} to {micro.high:.4g})",
        "" if present else f"{each.predicted_speedup:.3f} x",
        "" if present else _rate(each.speedup),
        f"{each.measured_share:.0%}",
    )


def _miss(product: Product) -> float:
    """How far the prediction is from the reading, in its logarithm; what has no reading stands last."""
    return -1.0 if product.reading is None else abs(math.log(product.predicted_s / product.reading.seconds))


def _product_row(product: Product) -> tuple[str, ...]:
    reading = product.reading
    measured = ("not measured", "") if reading is None else (
        f"{reading.seconds * 1e6:.1f} ({reading.low * 1e6:.1f} to {reading.high * 1e6:.1f})",
        f"{product.predicted_s / reading.seconds:.2f}",
    )  # fmt: skip
    return (_what(product), f"{product.predicted_s * 1e6:.1f}", *measured)


def _what(product: Product) -> str:
    p: Any = product.case.parameters
    if product.case.operator == "matmul":
        return f"{p.m}x{p.n}x{p.k} {p.layout} {p.dtype}"
    phase = "backward" if p.backward else "forward"
    return f"attention {phase} {p.batch} x {p.heads} heads ({p.key_heads} key) of {p.head_dim}, {p.seq_q} tokens"
