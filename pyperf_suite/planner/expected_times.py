"""Seconds that the laws expect of a GPU's parts; they know no CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.extensions import Expect, ExpectedTime
from pyperf_suite.planner.laws.collectives import collective_time
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.roofline import memory_bound_time
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import find_workload

# The error that is assumed of a law that states none.
USUAL_PERCENT = 20.0


def expected_times(identity: Mapping[str, Any]) -> Expect:
    """Seconds that a case should take on the machine of that identity. Raises UserError for a CPU."""
    if identity.get("kind") == "cpu":
        raise UserError("No law says what a CPU's kernels take.")
    gpu = str(identity.get("model"))

    def expect(case: Case) -> ExpectedTime | None:
        p = case.parameters
        try:
            if case.operator == "matmul":
                price = gemm_time(gpu, p.m, p.n, p.k, "bf16", p.layout, case.mode)
            elif case.operator == "layer_pass":
                price = memory_bound_time(gpu, float(find_workload("layer_pass").work(p).bytes))
            elif case.operator == "collective":
                price = collective_time(gpu, p.op, p.message_bytes, p.ranks)
            else:
                return None
        except UserError:  # a GPU that is not in the catalogue
            return None
        seconds, error = float(price.seconds), 1 + 2 * (price.error_percent or USUAL_PERCENT) / 100
        low, high = (price.low, price.high) if price.low is not None else (seconds / error, seconds * error)
        source = f"the law, from {price.origin}" if price.origin else "the law"
        return ExpectedTime(seconds, float(low), float(high), source)

    return expect
