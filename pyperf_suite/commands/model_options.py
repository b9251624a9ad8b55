"""Which model and which GPU a command is asked about: the options, and what they come to.

`size` and `layout` read a model alike, from a config.json, from dimensions, or from both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.options import options, path_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.laws.calibration import Calibration
    from pyperf_suite.laws.dimensions import ModelDimensions

DEFAULT_SEQ = 4096
# What a model has to have where no config.json says it.
NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


gpu_options = options(
    click.option("--gpu", metavar="NAME", help="As in H200 or A100; by default the GPU in this machine."),
    path_option("--calibration", help="Laws fitted by `calibrate` instead of those shipped."),
)
"""Which GPU is asked about, and by whose calibration."""

model_options = options(
    path_option("--config", help="A Hugging Face config.json."),
    click.option("--layers", type=int, metavar="N"),
    click.option("--hidden", type=int, metavar="N", help="Width of the residual stream."),
    click.option("--heads", type=int, metavar="N", help="Of the queries."),
    click.option("--kv-heads", type=int, metavar="N", help="By default as many as heads."),
    click.option("--head-dim", type=int, metavar="N", help="By default hidden / heads."),
    click.option("--ffn", type=int, metavar="N", help="Width of the MLP."),
    click.option("--vocab", type=int, metavar="N"),
    click.option("--experts", type=int, metavar="N", help="MLPs of width ffn in each layer; by default 1."),
    click.option("--top-k", type=int, metavar="N", help="Experts that a token visits."),
    click.option("--gated/--not-gated", default=None, help="SwiGLU or GELU; by default gated."),
    click.option("--tied/--not-tied", default=None, help="One matrix for embedding and logits."),
    click.option(
        "--seq", type=int, metavar="N", help=f"By default {DEFAULT_SEQ}, or what the model has if that is less."
    ),
)
"""Which model is asked about, and how long its sequences are."""


def asked_gpu(name: str | None, calibration: Path | None) -> tuple[GpuSpec, GpuSpec | Calibration]:
    """What was asked about, and what its laws are taken from. Raises UserError for an unknown GPU, or one too many."""
    from pyperf_suite.hardware.catalogue import find_gpu
    from pyperf_suite.laws.calibration import check_form, load_calibration

    if calibration is not None:
        fitted = load_calibration(calibration)
        if fitted.device_kind != "cuda":
            raise UserError(
                f"{calibration} was fitted on a CPU ({fitted.gpu}), but the laws asked here are of GPUs: name "
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


def asked_model(
    config: Path | None, seq: int | None, given: dict[str, Any]
) -> tuple[ModelDimensions, int, tuple[str, ...]]:
    """The model of the file, of the options, or of both; the length of its sequences; and notes.

    Raises UserError where neither says enough, or what no model can have.
    """
    from pyperf_suite.advise.model.config import read_model_config
    from pyperf_suite.laws.dimensions import ModelDimensions

    said = {name: value for name, value in given.items() if value is not None}
    for name, value in said.items():
        if value < 1 and not isinstance(value, bool):
            raise UserError(f"--{name.replace('_', '-')} has to be at least 1, but {value} was asked for.")
    if config is not None:
        read = read_model_config(config)
        model, longest, notes = (
            read.dimensions.resized(**said) if said else read.dimensions,
            read.longest_seq,
            read.notes,
        )
        asked = seq if seq is not None else min(DEFAULT_SEQ, longest or DEFAULT_SEQ)
        if asked > longest > 0:
            told = f"Sequences of {asked} tokens are beyond the {longest} that the model's configuration names."
            notes = (*notes, told)
        return model, asked, notes
    if missing := [name for name in NEEDED if name not in said]:
        raise UserError(
            f"A model needs {', '.join(f'--{name}' for name in NEEDED)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: give them, or a config.json with --config."
        )
    return ModelDimensions(**{"gated": True, **said}), seq if seq is not None else DEFAULT_SEQ, ()
