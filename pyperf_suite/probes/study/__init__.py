"""A study of layouts: the same training step cut over ranks in many ways, each run and ranked by samples per second."""

from __future__ import annotations

from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.study.findings import analyse
from pyperf_suite.probes.study.grid import StudyAxes, cases_of, default_axes
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.spec.probe import Probe


def axes(profile: str, device: Device) -> StudyAxes:
    """The same in every profile, for a study is made longer by experiments: over a launcher's ranks, or all GPUs."""
    del profile
    found = rank_environment()
    return default_axes(device, found.count if found.launched else max(1, len(gpus())))


PROBE = Probe(
    name="study",
    question="Which way to cut a training step over ranks is fastest here, and what does each way cost and hold?",
    topic="the whole step",
    title="Study of configurations",
    axes=axes,
    sweep=cases_of,
    analyse=analyse,
    group=lambda _: "study",
    # Each visit starts a launcher anew, minutes in all: a run that names no probe, and pytest's table, leave it out.
    is_timed=False,
    has_items=False,
)
