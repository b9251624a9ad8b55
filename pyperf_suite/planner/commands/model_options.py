"""The options for a model and a GPU, which `size` and `layout` share, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli.options import options, path_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.laws.transformer import ModelDimensions
    from pyperf_suite.planner.laws.calibration import Calibration

DEFAULT_SEQ = 4096
# What a model has to have where no config.json says it.
NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


COUNTS = {
    "layers": "",
    "hidden": "Width of the residual stream.",
    "heads": "Of the queries.",
    "kv-heads": "By default as many as heads.",
    "head-dim": "By default hidden / heads.",
    "ffn": "Width of the MLP.",
    "vocab": "",
    "experts": "MLPs of width ffn in each layer; by default 1.",
    "top-k": "Experts of each token.",
}


def count_options(texts: Mapping[str, str]) -> list[Callable[[Any], Any]]:
    """An option with a whole number for each name, with its help."""
    return [click.option(f"--{name}", type=int, metavar="N", help=text or None) for name, text in texts.items()]


gpu_options = options(
    click.option("--gpu", metavar="NAME", help="As in H200 or A100; by default the GPU in this machine."),
    path_option("--calibration", help="Laws fitted by `calibrate` instead of those shipped."),
    click.option(
        "--library", metavar="NAME", help="Whose kernels: trtllm, sglang, vllm; by default the first there is."
    ),
)
"""The GPU, whose calibration, and whose kernels."""

model_options = options(
    path_option("--config", help="A Hugging Face config.json."),
    *count_options(COUNTS),
    click.option("--gated/--not-gated", default=None, help="SwiGLU or GELU; by default gated."),
    click.option("--tied/--not-tied", default=None, help="One matrix for embedding and logits."),
    *count_options({"seq": f"By default {DEFAULT_SEQ}, or what the model has if that is less."}),
)
"""The model, and the length of its sequences."""


def requested_gpu(name: str | None, calibration: Path | None) -> tuple[GpuSpec, GpuSpec | Calibration]:
    """The GPU, and what its laws are taken from. Raises UserError for an unknown GPU, or one too many."""
    from pyperf_suite.hardware.catalogue import find_gpu
    from pyperf_suite.planner.laws.calibration import load_calibration
    from pyperf_suite.planner.laws.prices import check_form

    if calibration is not None:
        fitted = load_calibration(calibration)
        if fitted.device_kind != "cuda":
            raise UserError(
                f"{calibration} was fitted on a CPU ({fitted.gpu}), but the laws used here are of GPUs: name "
                "one fitted on a GPU, or a GPU alone with --gpu."
            )
        check_form(fitted, calibration)
        if name is not None and find_gpu(name) != find_gpu(fitted.gpu):
            raise UserError(f"{calibration} was fitted on {fitted.gpu}, not on {name}: leave --gpu out, or name that.")
        return find_gpu(fitted.gpu), fitted
    spec = find_gpu(name) if name is not None else _gpu_of_this_machine()
    return spec, spec


def _gpu_of_this_machine() -> GpuSpec:
    from pyperf_suite.hardware.catalogue import find_gpu
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity

    device = resolve("auto")
    if device.kind != "cuda":
        raise UserError("There is no GPU in this machine to take sizes for: name one, as in --gpu H200.")
    return find_gpu(str(identity(device).fields["model"]))


def requested_model(
    config: Path | None, seq: int | None, given: dict[str, Any]
) -> tuple[ModelDimensions, int, tuple[str, ...]]:
    """The model of the file, of the options, or of both; the length of its sequences; and notes.

    Raises UserError where neither says enough, or what no model can have.
    """
    from pyperf_suite.laws.transformer import ModelDimensions
    from pyperf_suite.planner.model_config import read_model_config

    dimensions = {name: value for name, value in given.items() if value is not None}
    for name, value in dimensions.items():
        if value < 1 and not isinstance(value, bool):
            raise UserError(f"--{name.replace('_', '-')} has to be at least 1, but {value} was requested.")
    if config is not None:
        read = read_model_config(config)
        model = read.dimensions.resized(**dimensions) if dimensions else read.dimensions
        notes, longest = read.notes, read.longest_seq
        length = seq if seq is not None else min(DEFAULT_SEQ, longest or DEFAULT_SEQ)
        if length > longest > 0:
            beyond = f"Sequences of {length} tokens are beyond the {longest} that the model's configuration names."
            notes = (*notes, beyond)
        return model, length, notes
    if missing := [name for name in NEEDED if name not in dimensions]:
        raise UserError(
            f"A model needs {', '.join(f'--{name}' for name in NEEDED)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: give them, or a config.json with --config."
        )
    return ModelDimensions(**{"gated": True, **dimensions}), seq if seq is not None else DEFAULT_SEQ, ()


def flop_per_token(config: Path, seq: int | None) -> float:
    """FLOP of a training step for each token of the model in that file; a service that `watch` asks for."""
    from pyperf_suite.laws.model_flop import model_flop

    model, length, _ = requested_model(config, seq, {})
    return float(model_flop(model, 1, length)) / length
