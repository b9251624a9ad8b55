"""Which nearby sizes of a model would train faster: predicted by the laws for a stated model and GPU, not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.render.results import Run
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.figure import draw_figure
from pyperf_suite.report.html.predicted import MARK
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.spec.findings import Figure

# A model of a common shape, whose heads and vocabulary are known to be badly chosen.
EXAMPLE = ModelDimensions(layers=32, hidden=2560, heads=32, ffn=10240, vocab=50257)
SEQ = 4096
STAND_IN = "H200"
_REACH = 0.2


def draw_sizing(runs: Sequence[Run], anchor: str) -> str:
    """Heat maps for the GPU that was measured, where the catalogue knows it, or else for a stand-in that is named."""
    from pyperf_suite.advise.sizing.heat_maps import heat_maps
    from pyperf_suite.advise.sizing.prices import LawPrices
    from pyperf_suite.advise.sizing.setting import Setting

    gpu, measured = gpu_of(runs)
    setting = Setting(EXAMPLE, SEQ)
    try:
        figures = heat_maps(setting, LawPrices(gpu, setting.dtype), gpu.name, _REACH)
    except UserError as reason:
        return (
            f'<section id="{anchor}"><h3>Sizing</h3><p class="quiet">No prediction for {text(gpu.name)}: '
            f"{text(reason)}</p></section>"
        )
    options = " ".join(f"--{name} {getattr(EXAMPLE, name)}" for name in ("layers", "hidden", "heads", "ffn", "vocab"))
    source = Source(f"pyperf-suite size {options} --not-gated --gpu {gpu.name!r}")
    where = "the GPU measured here" if measured else "an example, for no GPU was measured here"
    return "".join(
        (
            f'<section id="{anchor}"><h3>Sizing</h3>',
            '<p class="question">Which nearby sizes of a model would train faster?</p>',
            f"<p>{MARK} By the laws for {text(gpu.name)} ({where}) and a model of {EXAMPLE.layers} layers, hidden "
            f"{EXAMPLE.hidden}, {EXAMPLE.heads} heads, ffn {EXAMPLE.ffn}, vocabulary {EXAMPLE.vocab}, sequences of "
            f"{SEQ} tokens. <code>pyperf-suite size --config config.json</code> does the same for yours, with the "
            "error of the laws.</p>",
            *(draw_figure(_said_to_be_predicted(figure), source) for figure in figures),
            "</section>",
        )
    )


def gpu_of(runs: Sequence[Run]) -> tuple[GpuSpec, bool]:
    """The GPU of the newest run that the catalogue knows, and whether there is one."""
    for run in reversed(runs):
        identity = run.first.identity
        if identity.get("kind") == "cuda":
            try:
                return find_gpu(str(identity.get("model", ""))), True
            except UserError:
                continue
    return find_gpu(STAND_IN), False


def _said_to_be_predicted(figure: Figure) -> Figure:
    return (
        figure if "redicted" in figure.caption else dataclasses.replace(figure, caption=f"Predicted. {figure.caption}")
    )
