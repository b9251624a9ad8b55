"""The options for a model and a GPU, which `size` and `layout` share, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli.options import Finite, options, path_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.findings.data import Findings
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.laws.transformer import ModelDimensions
    from pyperf_suite.planner.laws.calibration import Calibration

DEFAULT_SEQ = 4096
MOST_SEQ = 1 << 24
MOST_GIB = 1 << 14
# Dimensions that a model must have where no config.json gives them.
NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


COUNTS = {
    "layers": "Number of layers. Required unless --config is given. Example: --layers 32.",
    "hidden": "Width of the residual stream. Required unless --config is given. Example: --hidden 4096.",
    "heads": "Number of query heads. Required unless --config is given. Example: --heads 32.",
    "kv-heads": "Number of key-value heads. Default: as many as --heads. Example: --kv-heads 8.",
    "head-dim": "Width of a head. Default: hidden / heads. Example: --head-dim 128.",
    "ffn": "Width of the MLP. Required unless --config is given. Example: --ffn 14336.",
    "vocab": "Size of the vocabulary. Required unless --config is given. Example: --vocab 128256.",
    "experts": "Number of MLPs of width --ffn in each layer. Default: 1. Example: --experts 8.",
    "query-rank": "Rank of the latent of queries (MLA; q_lora_rank). Default: none. Example: --query-rank 1536.",
    "latent-rank": "Rank of the latent of keys and values (MLA; kv_lora_rank). Default: no MLA. Example: --latent-rank "
    "512.",
    "rope-head-dim": "Part of --head-dim that is rotated (MLA; qk_rope_head_dim). Default: none. Example: "
    "--rope-head-dim 64.",
    "value-head-dim": "Width of a head's values (MLA; v_head_dim). Default: none. Example: --value-head-dim 128.",
    "top-k": "Number of experts that each token is sent to. Default: 1. Example: --top-k 2.",
}


LIBRARY = (
    "Library whose products are priced: trtllm, sglang, vllm. Default: the first measured. Example: --library vllm."
)
OF_CARD = {
    "power W": "Power that the card may draw, if less than usual. Default: its data sheet's. Example: --power 500.",
    "memory-bandwidth GB/S": "Bandwidth of the card's memory. Default: its data sheet's. Example: --memory-bandwidth "
    "2400.",
}


def value_options(texts: Mapping[str, str], kind: Any = None) -> list[Callable[[Any], Any]]:
    """An option of that kind with its help for each "name METAVAR"."""
    named = [(*name.split(" ", 1), text) for name, text in texts.items()]
    return [click.option(f"--{name}", type=kind, metavar=metavar, help=text) for name, metavar, text in named]


gpu_options = options(
    *value_options({"gpu NAME": "Name of the GPU. Default: the GPU in this machine. Example: --gpu H200."}),
    path_option(
        "--calibration",
        help="File of laws that `calibrate` fitted. Default: those shipped. Example: --calibration laws.npz.",
    ),
    *value_options({"library NAME": LIBRARY}),
    *value_options(OF_CARD, Finite(0, 1e6, min_open=True)),
)
"""The GPU, whose calibration, whose kernels, and what the card has that its kind has not."""

model_options = options(
    path_option("--config", help="Hugging Face config.json of a model. Default: none. Example: --config config.json."),
    *value_options(
        {"family NAME": "Family that --config is read as. Default: its model_type. Example: --family llama."}
    ),
    *value_options({f"{name} N": text for name, text in COUNTS.items()}, click.IntRange(1)),
    click.option("--gated/--not-gated", default=None, help="Whether the MLP is SwiGLU or GELU. Default: --gated."),
    click.option("--tied/--not-tied", default=None, help="Whether embedding and logits are one. Default: --not-tied."),
    *value_options(
        {
            "seq N": f"Tokens of a sequence. Default: {DEFAULT_SEQ}, or the model's longest if less. "
            "Example: --seq 8192."
        },
        click.IntRange(1, MOST_SEQ),
    ),
)
"""The model, and the length of its sequences."""


def requested_gpu(
    name: str | None, calibration: str | Path | None, power_w: float | None = None, memory_gb_s: float | None = None
) -> tuple[GpuSpec, GpuSpec | Calibration]:
    """The GPU, and what its laws are taken from. Raises UserError for an unknown GPU, or one too many."""
    from pyperf_suite.hardware.catalogue import find_gpu
    from pyperf_suite.planner.laws.calibration import load_calibration
    from pyperf_suite.planner.laws.prices import check_form
    from pyperf_suite.planner.laws.transfers import card_of

    if calibration is not None:
        if power_w is not None or memory_gb_s is not None:
            raise UserError(
                f"{calibration} was measured on a card with its own power and memory: leave --power and "
                "--memory-bandwidth out, or the calibration."
            )
        fitted = load_calibration(Path(calibration))
        check_form(fitted, Path(calibration))
        if name is not None and find_gpu(name) != find_gpu(fitted.gpu):
            raise UserError(f"{calibration} was fitted on {fitted.gpu}, not on {name}: leave --gpu out, or name that.")
        return find_gpu(fitted.gpu), fitted
    if name is None:
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.hardware.machine import identity

        device = resolve("auto")
        if device.kind != "cuda":
            raise UserError("There is no GPU in this machine to take sizes for: name one, as in --gpu H200.")
        name = str(identity(device).fields["model"])
    spec = card_of(find_gpu(name), power_w, memory_gb_s)
    return spec, spec


def requested_model(
    config: str | Path | None, seq: int | None, options: dict[str, Any], family: str | None = None
) -> tuple[ModelDimensions, int, tuple[str, ...]]:
    """The model of the file, read as of a `family`, of the options, or of both; the length of sequences; and notes.

    Raises UserError where neither says enough, or what no model can have.
    """
    from pyperf_suite.laws.transformer import ModelDimensions
    from pyperf_suite.planner.model_config import read_model_config
    from pyperf_suite.planner.sizing.step import resized

    dimensions = {name: value for name, value in options.items() if value is not None}
    if config is not None:
        read = read_model_config(Path(config), family)
        model = resized(read.dimensions, **dimensions) if dimensions else read.dimensions
        notes, longest = read.notes, read.longest_seq
        length = seq if seq is not None else min(DEFAULT_SEQ, longest or DEFAULT_SEQ)
        if length > longest > 0:
            beyond = f"Sequences of {length} tokens are beyond the {longest} that the model's configuration names."
            notes = (*notes, beyond)
        return model, length, notes
    if family is not None:
        raise UserError(f"--family {family} says how --config is read, which is missing: name the file too.")
    if missing := [name for name in NEEDED if name not in dimensions]:
        raise UserError(
            f"A model needs {', '.join(f'--{name}' for name in NEEDED)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: give them, or a config.json with --config."
        )
    return ModelDimensions(**{"gated": True, **dimensions}), seq if seq is not None else DEFAULT_SEQ, ()


class Gibibytes(click.ParamType):
    """A size of memory in GiB: `80`, `80GiB`, or `80GB`, which are 74.5 of them."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        try:
            size = float(text.removesuffix("gb").removesuffix("gib")) * (1e9 / 2**30 if text.endswith("gb") else 1.0)
        except ValueError:
            size = math.nan
        if not 0 < size <= MOST_GIB:
            form = f"write GiB, as in 80 or 80GiB, or GB, as in 80GB, up to {MOST_GIB} GiB"
            self.fail(f"{value!r} is not a size of memory: {form}.", param, ctx)
        return size


def answer(command: str, findings: Findings, as_json: bool, everything: bool) -> None:
    """Print what a command found."""
    from pyperf_suite.render import text
    from pyperf_suite.render.terminal import console_for, print_answer, print_findings

    if as_json:
        click.echo(text.answer({command: findings}), nl=False)
    elif everything:
        print_findings(console_for(everything), {command: findings}, [])
    else:
        print_answer(console_for(), findings)


def flop_per_token(config: Path, seq: int | None) -> float:
    """FLOP of a training step for each token of the model in that file."""
    from pyperf_suite.laws.transformer import model_flop

    model, length, _ = requested_model(config, seq, {})
    return float(model_flop(model, 1, length)) / length
