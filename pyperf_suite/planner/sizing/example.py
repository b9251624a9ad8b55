"""The page's section of sizing: which nearby sizes of an example model would train faster on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, remark
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.sizing.details import heat_maps
from pyperf_suite.planner.sizing.step import Setting
from pyperf_suite.render.charts import PageFigure, page_figure
from pyperf_suite.render.page import Section, anchor
from pyperf_suite.render.results import ReadRun

# A model of a common shape, whose heads and vocabulary are known to be badly chosen.
EXAMPLE = ModelDimensions(layers=32, hidden=2560, heads=32, ffn=10240, vocab=50257)
_SIZES = {name: getattr(EXAMPLE, name) for name in ("layers", "hidden", "heads", "ffn", "vocab")}
SEQ, STAND_IN, _REACH = 4096, "H200", 0.2


def section(runs: Sequence[ReadRun]) -> Section:
    """Heat maps for the GPU that was measured, if the catalogue knows it, or else for a stand-in that is named."""
    gpu, measured = gpu_of(runs)
    place = anchor("sizing", runs[0].machine)
    section = Section(
        place, "Sizing (an example, predicted)", "Which nearby sizes of a model would train faster?", Findings()
    )
    try:
        figures = _sizing_figures(gpu.name)
    except UserError as reason:
        said = remark("No prediction for {gpu}: {reason}", gpu=gpu.name, reason=str(reason))
        return replace(section, found=Findings((said,)))
    said = remark(
        "By the laws for {gpu} ({where}) and a model of {layers} layers, hidden {hidden}, {heads} heads, ffn {ffn}, "
        "vocabulary {vocab}, sequences of {seq} tokens. `pyperf-suite size --config config.json` does the same for "
        "yours, with the error of the laws.",
        kind="predicted",
        gpu=gpu.name,
        where="the GPU measured here" if measured else "an example, for no GPU was measured here",
        seq=SEQ,
        **_SIZES,
    )
    options = " ".join(f"--{name} {value}" for name, value in _SIZES.items())
    command = f"pyperf-suite size {options} --not-gated --gpu {gpu.name!r}"
    return replace(section, found=Findings((said,)), figures=figures, command=command)


@cache
def _sizing_figures(gpu: str) -> tuple[PageFigure, ...]:
    setting = Setting(EXAMPLE, SEQ)
    return tuple(map(page_figure, heat_maps(setting, Prices(find_gpu(gpu), setting.dtype), gpu, _REACH)))


def gpu_of(runs: Sequence[ReadRun]) -> tuple[GpuSpec, bool]:
    """The GPU of the newest run that the catalogue knows, and whether there is one."""
    for run in reversed(runs):
        identity = run.first.identity
        if identity.get("kind") == "cuda":
            try:
                return find_gpu(str(identity.get("model", ""))), True
            except UserError:
                continue
    return find_gpu(STAND_IN), False
