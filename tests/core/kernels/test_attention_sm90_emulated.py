"""attention_sm90.cu's own text, run on the host against an emulation of its PTX, compared with attention in float64.

A case is drawn by its number: instance, heads, lengths, mask, schedule and what the inputs are like.
"""

import functools
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyperf_suite.kernels import attention_sm90
from pyperf_suite.kernels.attention import Shape
from pyperf_suite.kernels.attention_sm90 import HEAD_DIMS, Specialisation
from pyperf_suite.kernels.tensor_map import TensorMap
from pyperf_suite.measure.verify_attention import verify_attention
from pyperf_suite.workloads.operands import element_type, round_to, widen

HERE = Path(__file__).parent
Instances = Callable[..., Path]
# All that a specialisation varies in, in blocks that are small enough to emulate.
INSTANCES = (
    Specialisation(64, 16, 64, 2),
    Specialisation(64, 48, 64, 3, "fp16", 1),
    Specialisation(128, 64, 64, 2, "bf16", 8),
    Specialisation(192, 128, 64, 2, "bf16", 1),
    Specialisation(192, 32, 64, 4, "fp16"),
    Specialisation(64, 80, 96, 3, "fp16"),
    Specialisation(128, 32, 96, 2),
    Specialisation(192, 112, 96, 2),
    Specialisation(64, 128, 128, 2, "fp16", 3),
    Specialisation(128, 48, 128, 2),
    Specialisation(192, 16, 128, 3, "fp16"),
    Specialisation(64, 112, 192, 2, "fp16"),
    Specialisation(128, 32, 192, 2),
    Specialisation(128, 16, 256, 2, "fp16"),
    Specialisation(64, 80, 256, 2),
)
CASES_OF_EACH = 137
SENTINELS = 64  # elements before and behind each result that nobody may write
LONG = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Problem:
    """One launch: what it computes, on what, and how its units are handed out."""

    kernel: Specialisation
    shape: Shape
    head_dim: int
    causal: bool
    workers: int | None
    together: int
    seed: int
    spread: float = 1.0  # of the scores
    spoiled: str = ""  # which operand holds a NaN, or that keys are hidden by infinities

    @functools.cached_property
    def operands(self) -> tuple[NDArray[np.float32], ...]:
        """Q, K and V, exact in the kernel's type."""
        generator = np.random.default_rng(self.seed)
        shapes = (self.shape.q(self.head_dim), *2 * (self.shape.k(self.head_dim),))
        found = [generator.standard_normal(shape, np.float32) for shape in shapes]
        found[0] *= self.spread
        found = [widen(round_to(each, LONG[self.kernel.dtype]), LONG[self.kernel.dtype]) for each in found]
        q, k, v = found
        if self.spoiled == "infinite":
            q[..., 0] = 1
            k[:, :, self.hidden, 0] = -np.inf
        elif self.spoiled:
            spoiled = {"q": q, "k": k, "v": v}[self.spoiled]
            spoiled[-1, -1, spoiled.shape[2] // 2, 3] = np.nan
        return q, k, v

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Keys whose scores are minus infinity."""
        return np.arange(self.shape.seq_k) % 3 == 0

    @property
    def ends(self) -> NDArray[np.int64]:
        """How many keys each query sees."""
        rest = self.shape.seq_k - self.shape.seq_q
        return np.arange(1, self.shape.seq_q + 1) + rest if self.causal else np.full(self.shape.seq_q, self.shape.seq_k)


def problem(tile: Specialisation, seed: int) -> Problem:
    """The problem of a number: one to a few blocks, odd lengths among them, one input in four out of the ordinary."""
    generator = np.random.default_rng([seed, tile.queries, tile.keys, tile.head_dim])
    causal = bool(generator.integers(2))
    seq_q = int(generator.choice([1, 7, tile.queries - 1, tile.queries, tile.queries + 9, 2 * tile.queries + 1]))
    seq_k = int(generator.choice([1, tile.keys - 3, tile.keys, tile.keys + 1, 2 * tile.keys, 3 * tile.keys + 5]))
    seq_k = max(seq_k, seq_q) if causal else seq_k
    kv_heads = int(generator.integers(1, 3))
    shape = Shape(int(generator.integers(1, 3)), kv_heads * int(generator.integers(1, 3)), kv_heads, seq_q, seq_k)
    narrowest = max([dim for dim in HEAD_DIMS if dim < tile.head_dim], default=0) + 8
    head_dim = (
        tile.head_dim if generator.integers(2) else int(generator.integers(narrowest, tile.head_dim + 1)) // 8 * 8
    )
    workers = int(generator.integers(1, 4)) if generator.integers(2) else None
    spoiled = str(generator.choice(["", "", "", "q", "k", "v", "infinite"]))
    if spoiled == "infinite" and (causal or seq_k < 2):
        spoiled = ""
    spread = float(generator.choice([1, 1, 8]))
    return Problem(tile, shape, head_dim, causal, workers, int(generator.integers(1, 5)), seed, spread, spoiled)


@pytest.fixture(scope="module")
def program(emulation: Callable[..., Path]) -> Instances:
    """The program that runs an instance, of a source with a mistake where one is given: program(one, right, wrong)."""
    source, headers = attention_sm90.sources()
    texts = {**headers, "wgmma.cuh": "#pragma once\n"}
    texts["ptx.cuh"] = (HERE / "emulated_ptx_sm90.cuh").read_text()
    texts["emulated_kernel.h"] = (HERE.parent / "gpu_double" / "emulated_kernel.h").read_text()
    texts["emulated_grid_sm90.h"] = (HERE / "emulated_grid_sm90.h").read_text()
    texts["launch.cpp"] = (HERE / "emulated_launch_attention.cpp").read_text()

    @functools.cache
    def build(kernel: Specialisation, right: str = "", wrong: str = "") -> Path:
        assert not right or source.count(right) == 1
        mistaken = {attention_sm90.SOURCE: source.replace(right, wrong) if right else source}
        return emulation("launch.cpp", texts | mistaken, *(option for option in kernel.options() if option[:2] == "-D"))

    return build


def framed(elements: int, dtype: type) -> NDArray[np.generic]:
    """A buffer of ones, not a number in any type, with room for sentinels on both sides."""
    return np.full((elements + 2 * SENTINELS) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)


def asked(case: Problem) -> tuple[bytes, NDArray[np.generic], NDArray[np.generic]]:
    """Return the program's input for a problem, and O and lse as it finds them."""
    words = [round_to(each, LONG[case.kernel.dtype]) for each in case.operands]
    o, lse = framed(words[0].size, np.uint16), framed(words[0].size // case.head_dim, np.float32)
    maps = list[TensorMap]()

    def encode(**fields: int) -> bytes:
        maps.append(TensorMap(**fields))
        return b""

    schedule = case.kernel.schedule(case.shape, case.together, case.workers)
    addresses = (0, 0, 0, 2 * SENTINELS)
    packed = case.kernel.bind(encode, addresses, 0, case.shape, case.head_dim, case.causal, schedule)
    numbers = [each.nbytes for each in (*words, o, lse)]
    for each in maps:
        numbers += [each.address, *each.shape, each.stride_bytes, *each.box]
        numbers += [each.swizzle_bytes, each.matrices, each.matrix_bytes]
    numbers += [4 * SENTINELS]
    for parameter in packed[4:6]:
        numbers += np.frombuffer(parameter, np.int32).tolist()
    numbers += [case.kernel.smem_bytes, 1 + case.seed % 3, case.seed]
    head = struct.pack(f"<{len(numbers)}q", *numbers)
    return head + b"".join(each.tobytes() for each in (*words, o, lse)), o, lse


def check_all(launch: Path, problems: Sequence[Problem]) -> None:
    """Run problems in one process and check what each leaves."""
    told = [asked(each) for each in problems]
    done = subprocess.run([launch], input=b"".join(each for each, *_ in told), capture_output=True, timeout=1200)
    left = done.stdout
    for each, (_, o, lse) in zip(problems, told, strict=True):
        end = o.nbytes + lse.nbytes
        assert len(left) >= end, f"{each}: {done.stderr.decode()}"
        check(each, np.frombuffer(left[: o.nbytes], o.dtype), np.frombuffer(left[o.nbytes : end], lse.dtype))
        left = left[end:]
    assert done.returncode == 0
    assert not left


def check(case: Problem, o: NDArray[np.generic], lse: NDArray[np.generic]) -> None:
    """O and lse must be those of float64 within rounding, not a number where an input that is seen is none."""
    for buffer in (o, lse):
        for frame in (buffer[:SENTINELS], buffer[-SENTINELS:]):
            assert set(frame.view(np.uint8)) == {0xFF}, f"{case} writes outside of its results"
    q, k, v = case.operands
    stored = o[SENTINELS:-SENTINELS].view(element_type(LONG[case.kernel.dtype]).storage)
    result = widen(stored, LONG[case.kernel.dtype]).reshape(q.shape)
    sums = lse[SENTINELS:-SENTINELS].reshape(case.shape.lse)
    if case.spoiled in ("q", "k", "v"):
        rows = spoiled_rows(case)
        columns = np.arange(case.head_dim) == 3 if case.spoiled == "v" else np.ones(case.head_dim, bool)
        assert np.isnan(result[rows][..., columns]).all(), f"{case} loses a NaN"
        # A weight of 0 times a NaN is one: rows that step over a value without seeing it may have it too.
        if case.spoiled != "v":
            assert not np.isnan(result[~rows]).any(), f"{case} spreads a NaN"
            assert (np.isnan(sums) == rows).all(), f"{case} has a wrong NaN in lse"
        return
    if case.spoiled == "infinite":
        k, v = k[:, :, ~case.hidden], v[:, :, ~case.hidden]
    verification = verify_attention({"o": result}, q, k, v, None, case.causal, LONG[case.kernel.dtype])
    assert verification.passed, f"{case}: {verification.message}"
    np.testing.assert_allclose(sums, log_sums(case, q, k), rtol=1e-4, atol=1e-4, err_msg=str(case))


def spoiled_rows(case: Problem) -> NDArray[np.bool_]:
    """The queries [batch, heads, seq_q] that see the NaN."""
    rows = np.zeros(case.shape.lse, bool)
    if case.spoiled == "q":
        rows[-1, -1, case.shape.seq_q // 2] = True
    else:
        rows[-1, -case.shape.group :] = case.ends > case.shape.seq_k // 2
    return rows


def log_sums(case: Problem, q: NDArray[np.float32], k: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ln Σ exp of each query's scaled scores."""
    keys = np.repeat(k.astype(np.float64), case.shape.group, axis=1)
    scores = q.astype(np.float64) @ keys.swapaxes(2, 3) / np.sqrt(case.head_dim)
    if case.causal:
        scores = np.where(np.arange(case.shape.seq_k) < case.ends[:, None], scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    return (np.log(np.exp(scores - highest).sum(-1, keepdims=True)) + highest)[..., 0]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", INSTANCES, ids=lambda one: one.name)
def test_attention_of_any_problem_is_that_of_float64(program, kernel):
    check_all(program(kernel), [problem(kernel, seed) for seed in range(CASES_OF_EACH)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("fragment_column(0, i) >= seen", "fragment_column(0, i) > seen"),
        ("results[i] *= shrink[i / 2 % 2]", "results[i] *= shrink[i % 2]"),
        ("(step - 1) * TILE_N, key_head", "step * TILE_N, key_head"),
        ("ptx::wgmma_wait_group<1>();", "ptx::wgmma_wait_group<2>();"),
        ("quotient(block.head, attention.group, attention.by_group)", "0"),
    ],
)
def test_a_mistake_is_seen(program, right, wrong):
    with pytest.raises(AssertionError):
        check_all(program(INSTANCES[0], right, wrong), [problem(INSTANCES[0], seed) for seed in range(30)])


@pytest.mark.parametrize("seed", range(20))
def test_a_few_of_the_problems_are_right(program, seed):
    check_all(program(INSTANCES[1]), [problem(INSTANCES[1], CASES_OF_EACH + seed)])
