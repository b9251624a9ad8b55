"""Sizing from Python: what the commands `explain` and `size` answer, as objects with a view for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite.planner.commands.model_options import requested_gpu, requested_model

if TYPE_CHECKING:
    from pyperf_suite.planner.product_explained import ProductExplained
    from pyperf_suite.planner.sizing.report import Sizing


def explain(
    m: int,
    n: int,
    k: int,
    gpu: str | None = None,
    dtype: str = "bf16",
    layout: str = "TN",
    library: str | None = None,
    calibration: str | Path | None = None,
    power: float | None = None,
    memory_bandwidth: float | None = None,
) -> ProductExplained:
    """Explain the time of C[m, n] = A[m, k]·B[k, n], as `pyperf-suite explain` does.

    >>> explain(4096, 11007, 4096, gpu="H100").better[0].sizes
    {'N': 11008}

    By default on the GPU in this machine, by the kernels of the first library that was measured. `dtype` is bf16, fp16,
    fp8, tf32 or fp32, `layout` TN as in a forward pass, NN, NT or TT; `calibration` is a file of laws that
    `pyperf-suite calibrate` fitted; `power` and `memory_bandwidth` are the card's, where its kind has others. Raises
    UserError for an unknown GPU, dtype, layout or library, or a size below 1.
    """
    from pyperf_suite.planner.product_explained import explain_product

    _, laws = requested_gpu(gpu, calibration, power, memory_bandwidth)
    return explain_product(laws, (m, n, k), dtype, layout.upper(), library)


def size(
    config: str | Path | None = None,
    gpu: str | None = None,
    seq: int | None = None,
    micro_batch: int = 1,
    tp: int = 1,
    shards: int = 1,
    dtype: str = "bf16",
    vary: tuple[str, ...] | None = None,
    parameter_change: float = 0.02,
    reach: float = 0.15,
    library: str | None = None,
    calibration: str | Path | None = None,
    ep: int = 1,
    family: str | None = None,
    power: float | None = None,
    memory_bandwidth: float | None = None,
    **dimensions: Any,
) -> Sizing:
    """Find nearby dimensions of a model that train faster, as `pyperf-suite size` does.

    >>> model = dict(layers=4, hidden=2560, heads=20, ffn=10240, vocab=50257, gated=False)
    >>> size(gpu="H200", vary=("vocab",), **model).search.alone["vocab"].changes
    (('vocab', 50257, 50264),)

    `config` is a config.json of Hugging Face, or a folder with one, read as of another `family` where one is named;
    without it `dimensions` name the model's sizes: layers, hidden, heads, ffn and vocab, and where they differ others
    of ModelDimensions, such as kv_heads, head_dim, experts, top_k, latent_rank, gated and tied. By default on the GPU
    in this machine, and all that is in `sizing.search.AXES` may vary: each width by at most the share `reach`, the
    number of parameters by `parameter_change`. Raises UserError for what no model can have, and for an unknown GPU,
    dtype or library.
    """
    from pyperf_suite.planner.laws.prices import Prices
    from pyperf_suite.planner.laws.training.memory import USABLE_SHARE
    from pyperf_suite.planner.sizing.report import sizing
    from pyperf_suite.planner.sizing.search import AXES, Bounds
    from pyperf_suite.planner.sizing.step import Setting

    spec, laws = requested_gpu(gpu, calibration, power, memory_bandwidth)
    spec.peak(dtype)
    model, length, notes = requested_model(config, seq, dimensions, family)
    bounds = Bounds(AXES if vary is None else vary, parameter_change, reach, USABLE_SHARE * spec.memory_bytes)
    setting = Setting(model, length, micro_batch, tp, shards, dtype, ep)
    return sizing(laws, setting, bounds, Prices(laws, dtype, library=library), notes)
