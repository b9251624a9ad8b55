"""One module a probe: what varies, which law explains it, what to tell the user."""

from __future__ import annotations

from collections.abc import Iterable

from pyperf_suite.errors import UserError
from pyperf_suite.nearest import offer
from pyperf_suite.probes.alignment.probe import Alignment
from pyperf_suite.probes.attention_heads.probe import AttentionHeads
from pyperf_suite.probes.axes import parse_overrides
from pyperf_suite.probes.baseline import Baseline
from pyperf_suite.probes.calibration.probe import Calibration
from pyperf_suite.probes.calibration.steps import StepCalibration
from pyperf_suite.probes.collectives.probe import Collectives
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.static_kernels import StaticKernels
from pyperf_suite.probes.study.probe import Study
from pyperf_suite.probes.tile_wave.probe import TileWave
from pyperf_suite.probes.training.backward import Backward
from pyperf_suite.probes.training.block import Block
from pyperf_suite.probes.training.checkpointing import CheckpointingProbe
from pyperf_suite.probes.training.data_parallel.probe import DataParallelProbe
from pyperf_suite.probes.training.input_pipeline import InputPipelineProbe
from pyperf_suite.probes.training.memory import Memory
from pyperf_suite.probes.training.optimizer import OptimizerProbe
from pyperf_suite.probes.training.overlap import OverlapProbe
from pyperf_suite.probes.training.precision import Precision
from pyperf_suite.probes.training.topology import Topology
from pyperf_suite.probes.training.transfer import TransferProbe

PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        TileWave(),
        Baseline(),
        Alignment(),
        AttentionHeads(),
        Collectives(),
        Calibration(),
        StepCalibration(),
        StaticKernels(),
        Topology(),
        Memory(),
        Block(),
        Backward(),
        Precision(),
        DataParallelProbe(),
        OverlapProbe(),
        InputPipelineProbe(),
        TransferProbe(),
        OptimizerProbe(),
        CheckpointingProbe(),
        Study(),
    )
}


def overrides_of(texts: Iterable[str]) -> dict[str, str]:
    """Axes as a user wrote them. Raises UserError for what is no axis, or where one speaks to a probe there is not."""
    overrides = parse_overrides(texts)
    for name in overrides:
        probe, dot, _ = name.rpartition(".")
        if dot:
            find_probe(probe)
    return overrides


def find_probe(name: str) -> Probe:
    """The probe of that name. Raises UserError that names the nearest, or those there are."""
    if name not in PROBES:
        raise UserError(f"Unknown probe {name[:80]!r}: {offer(name, PROBES)}")
    return PROBES[name]
