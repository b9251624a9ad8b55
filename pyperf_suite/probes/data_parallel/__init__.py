"""A training step on several ranks: DDP's options beside a step without exchange, and the all_reduces it is made of."""

from __future__ import annotations

from pyperf_suite.probes.data_parallel.findings import NO_SYNC, analyse, setting_of
from pyperf_suite.probes.data_parallel.sweeps import axes, sweep
from pyperf_suite.spec.probe import Probe, RowClaim

PROBE = Probe(
    name="data_parallel",
    question="What does exchanging gradients cost a training step here, and what hides it?",
    topic="network",
    title="Training: data parallel",
    axes=axes,
    sweep=sweep,
    claims=(
        RowClaim(
            NO_SYNC,
            "With {setting}, no_sync over {accumulate} micro-batches is {measured} as fast as exchanging in each",
            ratio=lambda row: row.against(no_sync=False),
            where=lambda row: row.operator == "data_parallel" and row.accumulate > 1 and row.no_sync,
            values={"setting": setting_of},
        ),
    ),
    analyse=analyse,
    group=lambda case: f"data_parallel {case.operator} {case.implementation} {case.parameters.ranks} ranks",
)
