"""A predicted time split into its causes.

The parts add up to the time, so that what is told about a product is what was predicted for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Explained:
    """Seconds and their causes, all arrays of one shape.

    `parts` are seconds by cause and add up to `seconds`; one can be negative where it saves time. `extrapolated` says
    where the law was asked beyond the range it was fitted in. `error_percent` is the mean error that the law made on
    held-out measurements, None where none were held out; `origin` says where the law comes from.
    """

    seconds: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    extrapolated: NDArray[np.bool_]
    error_percent: float | None = None
    origin: str = ""
