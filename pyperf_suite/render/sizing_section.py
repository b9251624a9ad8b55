"""Which nearby sizes of a model would train faster: predicted by the laws for a stated model and GPU, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.render.plot import shown
from pyperf_suite.render.results import Run
from pyperf_suite.spec.findings import Findings, remark

# A model of a common shape, whose heads and vocabulary are known to be badly chosen.
EXAMPLE = ModelDimensions(layers=32, hidden=2560, heads=32, ffn=10240, vocab=50257)
SEQ = 4096
STAND_IN = "H200"
_REACH = 0.2


def sizing_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Heat maps for the GPU that was measured, where the catalogue knows it, or else for a stand-in that is named."""
    from pyperf_suite.advise.sizing_details import heat_maps
    from pyperf_suite.advise.sizing_step import Setting
    from pyperf_suite.laws.prices import Prices

    gpu, measured = gpu_of(runs)
    setting = Setting(EXAMPLE, SEQ)
    told = {"title": "Sizing (an example, predicted)", "question": "Which nearby sizes of a model would train faster?"}
    try:
        figures = heat_maps(setting, Prices(gpu, setting.dtype), gpu.name, _REACH)
    except UserError as reason:
        said = remark("No prediction for {gpu}: {reason}", gpu=gpu.name, reason=str(reason))
        return told | {"found": Findings((said,))}
    options = " ".join(f"--{name} {getattr(EXAMPLE, name)}" for name in ("layers", "hidden", "heads", "ffn", "vocab"))
    said = remark(
        "By the laws for {gpu} ({where}) and a model of {layers} layers, hidden {hidden}, {heads} heads, ffn {ffn}, "
        "vocabulary {vocab}, sequences of {seq} tokens. `pyperf-suite size --config config.json` does the same for "
        "yours, with the error of the laws.",
        kind="predicted",
        gpu=gpu.name,
        where="the GPU measured here" if measured else "an example, for no GPU was measured here",
        seq=SEQ,
        **{name: getattr(EXAMPLE, name) for name in ("layers", "hidden", "heads", "ffn", "vocab")},
    )
    return told | {
        "found": Findings((said,)),
        "figures": tuple(map(shown, figures)),
        "command": f"pyperf-suite size {options} --not-gated --gpu {gpu.name!r}",
    }


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
