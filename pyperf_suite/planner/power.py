"""Joules of a token, where a calibration of one's own has measured power; never from what a data sheet promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyperf_suite.findings.data import Quantity, Remark, remark
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.planner.laws.calibration import Calibration, CalibrationBlock

if TYPE_CHECKING:
    from pyperf_suite.runner.record import Record

# Not a law: watts that products drew, of which `size` and `layout` make joules.
POWER = "power"


@dataclass(frozen=True)
class MeasuredPower:
    """Watts of a device while it multiplied, from the least to the most of several products, and where from."""

    watts: float
    low: float
    high: float
    origin: str

    def a_token(self, devices: int, seconds_a_token: float) -> Quantity:
        """Joules of a token on so many devices, if they draw it all the time."""
        seconds = devices * seconds_a_token
        return Quantity(self.watts * seconds, "joules", self.low * seconds, self.high * seconds, predicted=True)

    def message(self, joules: Quantity) -> Remark:
        """That in a sentence."""
        return remark(
            "A token takes about {joules}, at the {watts} that products drew in {origin}; waiting draws less.",
            kind="predicted",
            joules=joules,
            watts=Quantity(self.watts, "W", self.low, self.high, predicted=True),
            origin=self.origin,
        )


def power_block(records: Sequence[Record], origin: str) -> CalibrationBlock | None:
    """What products of a run drew, the larger half of them, for small ones leave units idle; None where none did."""
    drawn: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        if record.outcome == "ok" and "power" in record.metrics and record.case["operator"] == "matmul":
            drawn.setdefault(record.case_id, []).append((record.work["flop"], record.metrics["power"].value))
    if not drawn:
        return None
    from pyperf_suite.planner.calibrate_laws import summary

    sizes = sorted((found[0][0], float(np.median([watts for _, watts in found]))) for found in drawn.values())
    watts = np.array([each for _, each in sizes[len(sizes) // 2 :]])
    middle = np.full(watts.size, np.median(watts))
    held_out = summary(middle, watts, watts.size, "each product by the median of all")
    ends = {"watts": np.array([np.median(watts), watts.min(), watts.max()])}
    return CalibrationBlock(ends, held_out.to_json(), origin=origin)


def power_of(laws: GpuSpec | Calibration) -> MeasuredPower | None:
    """The power in a calibration of one's own; None for a data sheet, whose limit nobody measured."""
    block = laws.blocks.get(POWER) if isinstance(laws, Calibration) else None
    found = block.arrays.get("watts") if block else None
    if block is None or found is None or found.shape != (3,):
        return None
    watts, low, high = map(float, found)
    return MeasuredPower(watts, low, high, block.origin)
