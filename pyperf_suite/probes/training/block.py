"""A transformer block and a small GPT in training: FLOP/s by each way of counting, tokens/s, and the block by parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.operators.training.block_part import BLOCK_PARTS, PART_DTYPES, BlockPart, BlockPartParameters
from pyperf_suite.operators.training.shape import Checkpointing, TransformerShape
from pyperf_suite.operators.training.step_flop import asked_flop, computed_flop, guides_flop
from pyperf_suite.operators.training.training_step import TrainingStepParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.claims import BIGSCIENCE, Claim
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table
from pyperf_suite.spec.rows import Reading, readings, speedup

FORMULA = Claim("parameters x {3|4} x 2 x seq x batch are a step's FLOPs", BIGSCIENCE, 0.9, 1.1)
MODELS = ("block", "gpt")
SWITCH = {"no": False, "yes": True}
# Square products of these edges, the fastest of which stands for what the machine can multiply (MAMF); a GPU's data
# sheet stands beside it.
CPU_EDGES, GPU_EDGES = (1024,), (8192,)


@dataclass(frozen=True)
class BlockAxes:
    """What the probe varies; `model` "block" is one layer, "gpt" has `layers` and a vocabulary."""

    model: tuple[str, ...]
    compiled: tuple[str, ...]
    checkpointing: tuple[Checkpointing, ...]
    precision: tuple[str, ...]
    part: tuple[str, ...]
    edge: tuple[int, ...]
    library: tuple[str, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    seq: tuple[int, ...]
    batch: tuple[int, ...]
    vocab: tuple[int, ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or a size that cannot be."""
        for name, allowed in (("model", MODELS), ("compiled", tuple(SWITCH)), ("part", BLOCK_PARTS)):
            for value in getattr(self, name):
                if value not in allowed:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(allowed)}.")
        for name, least in (("layers", 1), ("vocab", 0)):
            for number in getattr(self, name):
                if number < least:
                    raise UserError(f"{name}={number} was asked for, but {name} is at least {least}.")


class Block(Probe):
    """Whole steps, the parts of a block, and products that both are held against."""

    name = "block"
    question = "How many FLOP/s and tokens/s does a transformer train at here, and which part of a block holds it up?"

    def axes(self, profile: str, device: Device) -> BlockAxes:
        """A small block on a CPU; on a GPU one of hidden 4096, and torch.compile beside eager."""
        gpu, quick = device.kind == "cuda", profile == "quick"
        plain, dropped = Checkpointing(), Checkpointing("every")
        return BlockAxes(
            model=MODELS[:1] if quick else MODELS,
            compiled=("no", "yes") if profile == "full" or (gpu and not quick) else ("no",),
            checkpointing=(plain,) if quick else (plain, dropped),
            precision=("bfloat16",) if gpu else ("float32",),
            part=() if quick else BLOCK_PARTS,
            edge=GPU_EDGES if gpu else CPU_EDGES,
            library=("cublas" if gpu else "torch",),
            hidden=(4096,) if gpu else (256,),
            heads=(32,) if gpu else (4,),
            layers=(4,) if gpu else (2,),
            seq=(2048,) if gpu else (128,),
            batch=(4,) if gpu else (2,),
            vocab=(50304,) if gpu else (1024,),
            workers=(1,) if gpu else (cpu.detect().usable_cores,),
        )

    def sweep(self, axes: BlockAxes) -> list[Case]:
        """Steps of every model, parts of every block, products of every precision."""
        cases: dict[str, Case] = {}
        for case in itertools.chain(_steps(axes), _parts(axes), _products(axes)):
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Rates of steps by each way of counting, compiled beside eager, and where each part stands under its roof."""
        found = readings(records)
        steps = sorted(
            (each for each in found if each.case.operator == "training_step"),
            key=lambda each: _name(each.case.parameters),
        )
        peaks = _Peaks(found, _model_of(records))
        sentences = [*_step_sentences(steps, peaks), *_compiled_sentences(steps), *_part_sentences(found)]
        tables = [table for table in (_step_table(steps, peaks), _part_table(found, peaks)) if table is not None]
        return Findings(tuple(sentences), tuple(tables))

    def group(self, case: Case) -> str:
        """Steps, parts and products each have a table."""
        return f"block {case.operator}"


class _Peaks:
    """What products reach in the same run by type, and what a GPU's data sheet says."""

    def __init__(self, found: Sequence[Reading], gpu: str) -> None:
        self._products: dict[str, Reading] = {}
        for each in found:
            if each.case.operator == "matmul":
                dtype = each.case.parameters.dtype
                best = self._products.get(dtype)
                if best is None or each.tflop_per_s > best.tflop_per_s:
                    self._products[dtype] = each
        self._gpu = gpu

    def utilization(self, reading: Reading, flop: float) -> Ratio | None:
        """The share of the best product's rate, each process against its own."""
        product = self._products.get(dtype_of(reading))
        ratio = speedup(reading, product) if product is not None else None
        if ratio is None or product is None:
            return None
        return ratio.inverse * (flop / product.flop)

    def product(self, dtype: str) -> Reading | None:
        """The fastest product of that type."""
        return self._products.get(dtype)

    def data_sheet(self, dtype: str) -> float | None:
        """FLOP/s by the data sheet, None where there is none."""
        try:
            return find_gpu(self._gpu).peak(dtype) if self._gpu else None
        except UserError:
            return None


def dtype_of(reading: Reading) -> str:
    """The type that products of a step or a part are computed in."""
    p = reading.case.parameters
    return str(p.element if isinstance(p, TrainingStepParameters) else p.dtype)


def _shapes(axes: BlockAxes, model: str) -> Iterator[TransformerShape]:
    """Blocks or GPTs of every size, which keep all that backward needs."""
    sizes = (axes.hidden, axes.heads, axes.layers, axes.seq, axes.batch, axes.vocab)
    for hidden, heads, layers, seq, batch, vocab in itertools.product(*sizes):
        shape = TransformerShape(hidden=hidden, heads=heads, layers=1, seq=seq, batch=batch)
        yield replace(shape, layers=layers, vocab=vocab) if model == "gpt" else shape


def _steps(axes: BlockAxes) -> Iterator[Case]:
    kinds = (axes.model, axes.compiled, axes.checkpointing, axes.precision, axes.workers)
    for model, compiled, dropped, precision, workers in itertools.product(*kinds):
        # Beside steps that drop nothing, dropped activations are of interest in a stack that is not compiled.
        beside = dropped.kind != "none" and Checkpointing() in axes.checkpointing
        if beside and (model == "block" or SWITCH[compiled]):
            continue
        for shape in _shapes(axes, model):
            parameters = TrainingStepParameters(
                **vars(replace(shape, checkpointing=dropped)),
                precision=precision,
                compiled=SWITCH[compiled],
                workers=workers,
            )
            yield Case("training_step", parameters, "torch")


def _parts(axes: BlockAxes) -> Iterator[Case]:
    kinds = (axes.part, axes.precision, axes.workers)
    for part, precision, workers, shape in itertools.product(*kinds, _shapes(axes, "block")):
        dtype = precision.removeprefix("autocast_")
        if dtype in PART_DTYPES:
            parameters = BlockPartParameters(**vars(shape), part=part, dtype=dtype, workers=workers)
            yield Case("block_part", parameters, "torch")


def _products(axes: BlockAxes) -> Iterator[Case]:
    for edge, library, precision, workers in itertools.product(axes.edge, axes.library, axes.precision, axes.workers):
        dtype = precision.removeprefix("autocast_")
        parameters = MatmulParameters(edge, edge, edge, Schedule("library", workers), dtype=dtype)
        yield Case("matmul", parameters, library)


def _name(p: TrainingStepParameters) -> str:
    return f"{_size(p)}, {p.precision}{', compiled' if p.compiled else ''}"


def _size(p: TransformerShape) -> str:
    what = f"a GPT of {p.layers} layers and {p.vocab} tokens of vocabulary" if p.vocab else "a block"
    if not p.vocab and p.layers > 1:
        what = f"{p.layers} blocks"
    dropped = "" if p.checkpointing.kind == "none" else f", checkpointing {p.checkpointing}"
    return f"{what}, hidden {p.hidden}, {p.batch} x {p.seq}{dropped}"


def _parameters_of(reading: Reading) -> int:
    return int(reading.kernel["details"]["parameters"])


def _step_sentences(steps: Sequence[Reading], peaks: _Peaks) -> Iterator[str]:
    for each in steps:
        p = each.case.parameters
        rate = asked_flop(p) / each.seconds / 1e12
        told = f"A step of {_name(p)} takes {each.seconds * 1e3:.4g} ms: {p.tokens / each.seconds:,.0f} tokens/s"
        told += f", {rate:.3g} TFLOP/s of the model's own"
        shares = peaks.utilization(each, asked_flop(p)), peaks.utilization(each, computed_flop(p))
        product = peaks.product(dtype_of(each))
        if shares[0] is not None and shares[1] is not None and product is not None:
            told += f"; MFU {_percent(shares[0])}, HFU {_percent(shares[1])} of the {product.tflop_per_s:.3g} TFLOP/s "
            told += f"that a product of {product.case.parameters.m} cubed reaches here"
        sheet = peaks.data_sheet(dtype_of(each))
        if sheet is not None:
            told += f"; MFU {1e14 * rate / sheet:.1f} % of the data sheet's"
        yield told + "."
    told_of: dict[TrainingStepParameters, Reading] = {}
    for each in steps:  # FLOPs are the same in any precision, compiled or not
        told_of.setdefault(replace(each.case.parameters, precision="float32", compiled=False), each)
    for p, each in told_of.items():
        share = guides_flop(p, _parameters_of(each)) / computed_flop(p)
        yield FORMULA.counted(
            f"The guide's formula counts {share:.2f} x the FLOPs that are computed ({_size(p)})", share
        )


def _compiled_sentences(steps: Sequence[Reading]) -> Iterator[str]:
    eager = {each.case.parameters: each for each in steps if not each.case.parameters.compiled}
    for each in steps:
        plain = eager.get(replace(each.case.parameters, compiled=False))
        ratio = speedup(plain, each) if each.case.parameters.compiled and plain is not None else None
        if ratio is not None and plain is not None:
            yield f"With torch.compile a step runs {ratio} x as fast as without ({_name(plain.case.parameters)})."


def _part_sentences(found: Sequence[Reading]) -> Iterator[str]:
    for parts in _blocks(found):
        if len(parts) < 2:
            continue
        whole = sum(each.seconds for each in parts)
        products = sum(each.seconds for each in parts if each.case.parameters.product)
        slowest = max(parts, key=lambda each: each.seconds)
        bandwidth = _best_bandwidth(parts)
        yield (
            f"Forward of the parts of {_size(slowest.case.parameters)}, {dtype_of(slowest)}: products take "
            f"{100 * products / whole:.0f} % of the time, {slowest.case.parameters.part} alone "
            f"{100 * slowest.seconds / whole:.0f} %; parts without products reach up to {bandwidth / 1e9:.3g} GB/s."
        )


def _step_table(steps: Sequence[Reading], peaks: _Peaks) -> Table | None:
    rows = []
    for each in steps:
        p = each.case.parameters
        mfu, hfu = (peaks.utilization(each, flop) for flop in (asked_flop(p), computed_flop(p)))
        rows.append(
            (
                _name(p),
                f"{each.seconds * 1e3:.4g}",
                f"{p.tokens / each.seconds:.0f}",
                f"{guides_flop(p, _parameters_of(each)) / each.seconds / 1e12:.4g}",
                f"{asked_flop(p) / each.seconds / 1e12:.4g}",
                f"{computed_flop(p) / each.seconds / 1e12:.4g}",
                _percent(mfu) if mfu else "-",
                _percent(hfu) if hfu else "-",
            )
        )
    columns = ("step", "ms", "tokens/s", "TFLOP/s by the guide", "model's", "computed", "MFU", "HFU")
    return Table("Steps of training", columns, tuple(rows)) if rows else None


def _part_table(found: Sequence[Reading], peaks: _Peaks) -> Table | None:
    rows = []
    for parts in _blocks(found):
        bandwidth = _best_bandwidth(parts)
        for each in parts:
            moved = _bytes(each)
            product = peaks.product(dtype_of(each))
            computing = each.flop / (product.tflop_per_s * 1e12) if product is not None else 0.0
            roof_s = max(computing, moved / bandwidth)
            rows.append(
                (
                    each.case.parameters.part,
                    f"{each.seconds * 1e6:.4g}",
                    f"{each.flop / moved:.3g}",
                    f"{each.flop / each.seconds / 1e9:.4g}",
                    f"{moved / each.seconds / 1e9:.4g}",
                    "arithmetic" if computing >= moved / bandwidth else "bytes",
                    f"{100 * roof_s / each.seconds:.0f} %",
                )
            )
    columns = ("part", "us", "FLOP/byte", "GFLOP/s", "GB/s", "bound by", "of its roof")
    title = (
        "Roofline of a block's parts in forward, operands warm; roofs are this run's best product and best bandwidth"
    )
    return Table(title, columns, tuple(rows)) if rows else None


def _blocks(found: Sequence[Reading]) -> list[list[Reading]]:
    """Parts of the same block together, in its order."""
    blocks: dict[object, list[Reading]] = {}
    for each in found:
        if each.case.operator == "block_part":
            blocks.setdefault(replace(each.case.parameters, part=BLOCK_PARTS[0]), []).append(each)
    return [sorted(parts, key=lambda each: BLOCK_PARTS.index(each.case.parameters.part)) for parts in blocks.values()]


def _best_bandwidth(parts: Sequence[Reading]) -> float:
    """Bytes a second of the part without products that moves them fastest, of all parts where there is no such."""
    plain = [each for each in parts if not each.flop] or list(parts)
    return max(_bytes(each) / each.seconds for each in plain)


def _bytes(reading: Reading) -> int:
    return BlockPart().work(reading.case.parameters).bytes


def _model_of(records: Sequence[Record]) -> str:
    """The GPU's name, "" on a CPU."""
    names = [str(r.kernel["details"]["gpu"]) for r in records if r.kernel and "gpu" in r.kernel.get("details", {})]
    return names[0] if names else ""


def _percent(ratio: Ratio) -> str:
    return f"{100 * ratio.value:.1f} [{100 * ratio.low:.1f}, {100 * ratio.high:.1f}] %"
