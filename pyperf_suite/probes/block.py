"""A transformer block and a small GPT in training: FLOP/s by each way of counting, tokens/s, and the block by parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.axes import AxisTable, all_cores, by, crossed
from pyperf_suite.findings.data import BIGSCIENCE, Claim, Findings, Remark, findings
from pyperf_suite.findings.probe import Probe, RowClaim, RowTable
from pyperf_suite.findings.rows import Column, Row, Rows
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.laws.transformer import hardware_flop, model_flop
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import Ratio
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.training import Checkpointing, TransformerShape, requested_flop
from pyperf_suite.workloads.training.layers import BLOCK_PARTS, PART_DTYPES, BlockPartParameters
from pyperf_suite.workloads.training.shapes import (
    NAMES,
    published_columns,
    published_step,
    shape_name,
    sized,
    with_shape,
)
from pyperf_suite.workloads.training.training_step import TrainingStepParameters

FORMULA = Claim("parameters x {3|4} x 2 x seq x batch are a step's FLOPs", BIGSCIENCE, 0.9, 1.1)
MODELS = ("block", "gpt")
# As data sheets call the types of products.
SHEET = {"float32": "fp32", "tfloat32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
REACHES = "A step of {step} reaches {mfu:%} (MFU) of the {throughput} of a product of {m} cubed"

EAGER, COMPILED = ("no",), ("no", "yes")


@dataclass(frozen=True)
class BlockAxes(AxisTable):
    """A small block on a CPU; on a GPU one of hidden 4096, and torch.compile as well as eager.

    The `model` "block" is one layer, "gpt" has `layers` and a vocabulary. Steps are held against square products of
    these edges, the fastest of which is what the machine can multiply (MAMF). A `shape` is a model of the guides by its
    name, instead of `model` and its dimensions.
    """

    workers: tuple[int, ...] = by(all_cores, cuda=(1,))
    model: Annotated[tuple[str, ...], OneOf(MODELS)] = by(MODELS[:1], standard=MODELS)
    compiled: Annotated[tuple[str, ...], OneOf(COMPILED)] = by(EAGER, full=COMPILED, cuda=by(EAGER, COMPILED))
    checkpointing: tuple[Checkpointing, ...] = by((Checkpointing(),), (Checkpointing(), Checkpointing("every")))
    precision: tuple[str, ...] = by(("float32",), cuda=("bfloat16",))
    part: Annotated[tuple[str, ...], OneOf(BLOCK_PARTS)] = by((), standard=BLOCK_PARTS)
    edge: tuple[int, ...] = by((1024,), cuda=(8192,))
    library: tuple[str, ...] = by(("torch",), cuda=("cublas",))
    hidden: tuple[int, ...] = by((256,), cuda=(4096,))
    heads: tuple[int, ...] = by((4,), cuda=(32,))
    layers: Annotated[tuple[int, ...], Within(1)] = by((2,), cuda=(4,))
    seq: tuple[int, ...] = by((128,), cuda=(2048,))
    batch: tuple[int, ...] = by((2,), cuda=(4,))
    vocab: Annotated[tuple[int, ...], Within(0)] = by((1024,), cuda=(50304,))
    shape: Annotated[tuple[str, ...], NAMES] = ()


def shaped(axes: BlockAxes, name: str, _: Device) -> BlockAxes:
    """Whole steps of one of the guides' models."""
    return with_shape(axes, name, model=("gpt",), part=())


def sweep(axes: BlockAxes) -> Iterator[Case]:
    """Steps of every model, parts of every block, products of every precision."""
    for precision, workers in itertools.product(axes.precision, axes.workers):
        dtype = precision.removeprefix("autocast_")
        for model, compiled, dropped in itertools.product(axes.model, axes.compiled, axes.checkpointing):
            # Next to steps that drop nothing, dropped activations are of interest in a stack that is not compiled.
            recomputes_in_turn = dropped.kind != "none" and Checkpointing() in axes.checkpointing
            if recomputes_in_turn and (model == "block" or compiled == "yes"):
                continue
            how = {"checkpointing": dropped, "precision": precision, "compiled": compiled == "yes", "workers": workers}
            for shape in shapes(axes, model):
                yield Case("training_step", TrainingStepParameters(**vars(shape) | how), "torch")
        if dtype in PART_DTYPES:
            for part, shape in itertools.product(axes.part, shapes(axes, "block")):
                timed = BlockPartParameters(**vars(shape), part=part, dtype=dtype, workers=workers)
                yield Case("block_part", timed, "torch")
        for edge, library in itertools.product(axes.edge, axes.library):
            product = MatmulParameters(edge, edge, edge, Schedule("library", workers), dtype=dtype)
            yield Case("matmul", product, library)


def shapes(axes: BlockAxes, model: str) -> Iterator[TransformerShape]:
    """Blocks or GPTs of every size, which keep all that backward needs."""
    for name in axes.shape:
        yield from (sized(name, **sizes) for sizes in crossed(axes, "seq", "batch"))
    if axes.shape:
        return
    for sizes in crossed(axes, "hidden", "heads", "layers", "seq", "batch", "vocab"):
        yield TransformerShape(**sizes if model == "gpt" else sizes | {"layers": 1, "vocab": 0})


def analyse(rows: Rows) -> Findings:
    """How much of the machine's products steps reach, what compiling gives, and where a block's forward spends time."""
    steps = rows.where(is_step)
    return findings(
        (
            best.remark(REACHES, step=in_words(row), mfu=share)
            for row in steps
            if (share := mfu(row)) and (best := best_product(row))
        ),
        (
            row.remark("Compiled, {step} is {faster} as fast", effect="faster", faster=faster)
            for row in steps
            if row.p.compiled and (faster := row.against(compiled=False))
        ),
        (time_by_part(parts) for parts in rows.where(operator="block_part").groups("part") if len(parts) > 1),
    )


def time_by_part(parts: Rows) -> Remark:
    """Return the remark on how a block's forward divides its time among its parts."""
    whole = sum(row.seconds for row in parts)
    slowest = max(parts, key=lambda row: row.seconds)
    return slowest.remark(
        "In forward of {step} products take {products:%} of the time, {part} alone {slowest:%}",
        products=sum(row.seconds for row in parts if row.p.layer == "linear") / whole,
        slowest=slowest.seconds / whole,
    )


def computed_flop(shape: TransformerShape) -> float:
    """With what checkpointing computes again: all of a group up to its last product, whose result nobody needs.

    Selective checkpointing computes no product again. Fused attention computes its scores again in backward, which
    here is left out as in most published figures (PaLM, appendix B).
    """
    if shape.checkpointing.kind != "every":
        return requested_flop(shape)
    size = (shape.dimensions, shape.batch, shape.seq)
    again = hardware_flop(*size, "layers") - model_flop(*size)
    groups = -(-shape.layers // shape.checkpointing.every)
    return requested_flop(shape) + float(again) - groups * 2 * shape.tokens * shape.width * shape.hidden


def guides_flop(shape: TransformerShape, parameters: int) -> float:
    """Parameters x 3 (4 with checkpointing) x 2 x seq x batch (BigScience, tflops_optimization.md)."""
    return 2.0 * (3 + (shape.checkpointing.kind == "every")) * parameters * shape.tokens


def is_step(row: Row) -> bool:
    """True for a row of a step, neither a part nor a product."""
    return bool(row.case.operator == "training_step")


def precision(row: Row) -> str:
    """Return the precision of a step or a part."""
    return str(row.p.precision if is_step(row) else row.p.dtype)


def in_words(row: Row) -> str:
    """`a GPT of 2 layers and 1024 tokens of vocabulary, hidden 256, 2 x 128, checkpointing every:1, float32`."""
    blocks = f"{row.p.layers} blocks" if row.p.layers > 1 else "a block"
    gpt = f"a GPT of {row.p.layers} layers and {row.p.vocab} tokens of vocabulary"
    what = shape_name(row.p) or (gpt if row.p.vocab else blocks)
    dropped = f", checkpointing {row.p.checkpointing}" if row.p.checkpointing.kind != "none" else ""
    compiled = ", compiled" if is_step(row) and row.p.compiled else ""
    return f"{what}, hidden {row.p.hidden}, {row.p.batch} x {row.p.seq}{dropped}, {precision(row)}{compiled}"


def best_product(row: Row) -> Row | None:
    """The fastest product of its type in this run."""
    products = row.rows.where(operator="matmul", dtype=precision(row).removeprefix("autocast_"))
    return max(products, key=lambda each: each.reading.flop_per_s, default=None)


def share_of_product(row: Row, flop: float) -> Ratio | None:
    """The share of the best product's rate that these FLOPs are done at, each process against its own."""
    best = best_product(row)
    ratio = row.faster_than(best) if best else None
    return ratio * (flop / best.reading.flop) if best and ratio else None


def mfu(row: Row) -> Ratio | None:
    """Return MFU, by the FLOPs that the model requests; FLOPs that checkpointing computes again do not count."""
    return share_of_product(row, requested_flop(row.p))


def share_of_data_sheet(row: Row) -> float | None:
    """The share of what a GPU's data sheet promises, None on a CPU and of a GPU that the catalogue lacks."""
    gpus = [each.reading.details["gpu"] for each in row.rows if "gpu" in each.reading.details]
    try:
        peak = find_gpu(gpus[0]).peak(SHEET[precision(row).removeprefix("autocast_")]) if gpus else None
    except UserError:
        return None
    return requested_flop(row.p) / row.seconds / peak if peak else None


def by_guide(row: Row) -> float:
    """FLOPs by the guide's formula."""
    return guides_flop(row.p, int(row.reading.details["parameters"]))


def roof(row: Row) -> tuple[float, str]:
    """The shortest time of a part and what it is spent on: at the best product's rate, or at the best bandwidth."""
    parts = row.rows.same_except(row, "part")
    plain = [each for each in parts if not each.reading.flop] or parts
    moving = row.p.work.bytes / max(each.p.work.bytes / each.seconds for each in plain)
    best = best_product(row)
    computing = row.reading.flop / best.reading.flop_per_s if best else 0.0
    return (computing, "arithmetic") if computing >= moving else (moving, "bytes")


PROBE = Probe(
    name="block",
    question="How many FLOP/s and tokens/s does a transformer train at here, and which part of a block holds it up?",
    topic="training",
    title="Training: a step and its parts",
    axes=BlockAxes.of,
    sweep=sweep,
    shaped=shaped,
    fixed_by_shape=("hidden", "heads", "layers", "vocab", "model"),
    computed={"guide": lambda row: published_step(row.p), "step": in_words, "mfu": mfu},
    order=lambda row: (
        row.case.operator,
        "" if row.case.operator == "matmul" else in_words(row),
        BLOCK_PARTS.index(row.p.part) if row.case.operator == "block_part" else 0,
    ),
    claims=(
        RowClaim(
            FORMULA,
            "The guide's formula counts {measured} the FLOPs that are computed for {step}",
            ratio=lambda row: by_guide(row) / computed_flop(row.p),
            # FLOPs are the same in any precision, compiled or not: the formula is judged once.
            where=lambda row: is_step(row) and row.rows.same_except(row, "precision", "compiled")[0] is row,
        ),
    ),
    tables=(
        RowTable(
            "Steps of training",
            (
                Column("step", priority=2),
                Column("time", "seconds", "ms", 2),
                Column("tokens", lambda row: row.p.tokens / row.seconds, "/s"),
                Column("by the guide", lambda row: by_guide(row) / row.seconds, "TFLOP/s", 0),
                Column("the model's", lambda row: requested_flop(row.p) / row.seconds, "TFLOP/s"),
                Column("computed", lambda row: computed_flop(row.p) / row.seconds, "TFLOP/s", 0),
                Column("MFU", "mfu", "%", 2),
                Column("HFU", lambda row: share_of_product(row, computed_flop(row.p)), "%"),
                Column("MFU by data sheet", share_of_data_sheet, "%", 0),
            ),
            where=is_step,
        ),
        RowTable(
            "Steps of the guides' models, without an update here",
            (
                Column("model", lambda row: shape_name(row.p), priority=2),
                Column("batch", lambda row: f"{row.p.batch} x {row.p.seq}"),
                Column("precision", priority=2),
                Column("checkpointing", priority=0),
                Column("time", "seconds", "ms"),
                Column("rate", lambda row: row.p.batch / row.seconds, "samples/s", 2),
                *published_columns("samples_per_s", "samples/s"),
            ),
            where=lambda row: is_step(row) and bool(shape_name(row.p)),
        ),
        RowTable(
            "Roofline of a block's parts in forward, operands warm; roofs are this run's best product and best "
            "bandwidth",
            (
                Column("block", "step", priority=0),
                Column("part", priority=2),
                Column("time", "seconds", "us", 2),
                Column("FLOP/byte", lambda row: row.reading.flop / row.p.work.bytes),
                Column("rate", "flop_per_s", "GFLOP/s"),
                Column("bandwidth", lambda row: row.p.work.bytes / row.seconds, "GB/s"),
                Column("bound by", lambda row: roof(row)[1]),
                Column("of its roof", lambda row: roof(row)[0] / row.seconds, "%", 2),
            ),
            where=lambda row: row.case.operator == "block_part",
        ),
    ),
    analyse=analyse,
    group=lambda case: f"block {case.operator}",
)
