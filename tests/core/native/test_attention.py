import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pyperf_suite.workloads.operands import round_to, widen
from tests.core.native.test_gemm import workers_here

CANARY = np.uint16(0x4321)

# Per element: |out − ref| ≤ limit · (weights·|V|). Scores are fp32 sums rounded a few times, so a weight is off by a
# few 2⁻²⁴ times the score's own terms; a bfloat16 result is rounded once more, to 8 bits.
LIMIT = {"float32": 1e-5, "bfloat16": 2.0**-8}
# Kernels that round the weights to bfloat16 too.
ROUND_WEIGHTS = ("amx", "avx512_bf16")


def limit_of(isa: str | None, dtype: str) -> float:
    return LIMIT[dtype] * (2 if dtype == "bfloat16" and isa in ROUND_WEIGHTS else 1)


@dataclass
class Case:
    """One attention: its operands, and O poisoned with NaN between two rows of canaries."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    dtype: str = "float32"
    causal: bool = False
    seed: int = 0
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        shape_q = (self.batch, self.heads, self.seq_q, self.head_dim)
        shape_k = (self.batch, self.kv_heads, self.seq_k, self.head_dim)
        self.values = [random.standard_normal(shape).astype(np.float32) for shape in (shape_q, shape_k, shape_k)]
        self.store()

    def store(self) -> None:
        """Round the values to dtype, as the kernel reads them and as the reference does."""
        stored = [round_to(each, self.dtype) for each in self.values]
        self.operands = stored
        self.rounded = [widen(each, self.dtype) for each in stored]
        self.memory = np.empty(self.values[0].size + 2 * self.head_dim, stored[0].dtype)

    def attention(self, native: ModuleType) -> Any:
        return native.Attention(
            self.batch,
            self.heads,
            self.kv_heads,
            self.seq_q,
            self.seq_k,
            self.head_dim,
            self.dtype,
            self.causal,
            **self.options,
        )

    def run(self, attention: Any) -> np.ndarray:
        """The result as float32; checks that nothing before or after O was touched."""
        self.memory.view(np.uint16)[:] = CANARY
        inside = self.memory[self.head_dim : -self.head_dim]
        inside[:] = np.nan if self.dtype == "float32" else np.uint16(0x7FC0)
        attention.run(*(each.ctypes.data for each in self.operands), inside.ctypes.data)
        frame = np.concatenate([self.memory[: self.head_dim], self.memory[-self.head_dim :]])
        assert (frame.view(np.uint16) == CANARY).all(), "memory outside of O was written"
        result = inside.reshape(self.values[0].shape).copy()
        return widen(result, self.dtype)

    def weights(self) -> np.ndarray:
        """Softmax of the scaled scores in float64, [batch, heads, seq_q, seq_k]."""
        q, k = (each.astype(np.float64) for each in self.rounded[:2])
        k = np.repeat(k, self.heads // self.kv_heads, axis=1)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(self.head_dim)
        if self.causal:
            last = np.arange(self.seq_q)[:, None] + self.seq_k - self.seq_q
            scores = np.where(np.arange(self.seq_k) <= last, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    def assert_right(self, result: np.ndarray) -> None:
        v = np.repeat(self.rounded[2].astype(np.float64), self.heads // self.kv_heads, axis=1)
        weights = self.weights()
        limit = limit_of(self.options.get("isa"), self.dtype) * (weights @ np.abs(v))
        error = np.abs(result - weights @ v)
        assert np.isfinite(result).all()
        assert (error <= limit).all(), f"worst at {np.unravel_index((error - limit).argmax(), error.shape)}"

    def check(self, native: ModuleType) -> None:
        self.assert_right(self.run(self.attention(native)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [1, 40, 64, 72, 80, 128])
def test_attention_with_edges_on_every_side_is_right(native, isa, head_dim, causal, dtype):
    keys = native.micro_tile(isa)[1]
    options = {"isa": isa, "blocks": (30, 2 * keys), "workers": workers_here(native)}
    Case(2, 4, 2, 67, 8 * keys + 7, head_dim, dtype, causal, options=options).check(native)


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_around_the_blocks_and_one_are_right(native, isa, causal):
    keys = native.micro_tile(isa)[1]
    for seq_q in (1, 15, 16, 17):
        for seq_k in (17, 2 * keys - 1, 2 * keys, 2 * keys + 1):
            options = {"isa": isa, "blocks": (16, keys)}
            if not causal or seq_q <= seq_k:
                Case(1, 2, 1, seq_q, seq_k, 24, causal=causal, options=options).check(native)


def test_the_largest_head_dim_and_blocks_are_right(native, isa):
    Case(1, 1, 1, 40, 700, 512, options={"isa": isa, "blocks": (33, 512 - 512 % native.micro_tile(isa)[1])}).check(
        native
    )


def test_scores_of_hundreds_neither_overflow_nor_lose_the_largest(native, isa):
    keys = native.micro_tile(isa)[1]
    case = Case(1, 1, 1, 20, 4 * keys + 3, 16, options={"isa": isa, "blocks": (8, keys)})
    case.values[0] *= 300
    case.store()
    result = case.run(case.attention(native))
    # At such scores the weights are nearly 0 or 1: what counts is that the same keys win, and that sums stay one.
    np.testing.assert_allclose(result, case.weights() @ case.rounded[2].astype(np.float64), atol=2e-2)
    assert np.abs(case.weights().max(axis=-1) - 1).min() < 1e-6


def test_a_query_that_grows_key_by_key_is_rescaled_at_every_block(native, isa):
    keys = native.micro_tile(isa)[1]
    case = Case(1, 1, 1, 3, 6 * keys, 8, options={"isa": isa, "blocks": (3, keys)})
    case.values[0][:] = 1
    case.values[1][:] = np.linspace(-20, 20, 6 * keys, dtype=np.float32)[:, None] / np.sqrt(8)
    case.store()
    case.check(native)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_in_a_query_reaches_that_query_alone(native, isa, poison):
    keys = native.micro_tile(isa)[1]
    case = Case(1, 2, 1, 20, 3 * keys, 16, options={"isa": isa, "blocks": (8, keys)})
    case.values[0][0, 1, 7, 3] = poison
    case.store()
    result = case.run(case.attention(native))
    wrong = np.argwhere(np.isnan(result).all(axis=-1))
    assert wrong.tolist() == [[0, 1, 7]]
    assert np.isfinite(np.delete(result.reshape(40, 16), 27, axis=0)).all()


def test_a_key_that_is_not_a_number_reaches_every_query_that_sees_it(native, isa):
    keys = native.micro_tile(isa)[1]
    case = Case(1, 1, 1, 20, 2 * keys, 16, options={"isa": isa, "blocks": (8, keys)})
    case.values[1][0, 0, keys + 1, 3] = np.nan
    case.store()
    assert np.isnan(case.run(case.attention(native))).all()


def test_an_infinite_value_stays_infinite_past_a_block_that_hangs_over_the_keys(native, isa):
    keys = native.micro_tile(isa)[1]
    case = Case(1, 1, 1, 5, 2 * keys - 5, 3 * keys // 2, options={"isa": isa, "blocks": (8, keys)})
    # In the first and the last column: whole panels of V and the narrow one. What the second block leaves free of the
    # first would make it 0 · ∞.
    case.values[2][0, 0, keys - 2, [0, -1]] = np.inf
    case.store()
    result = case.run(case.attention(native))
    assert (result[..., [0, -1]] == np.inf).all()
    assert np.isfinite(result[..., 1:-1]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_repeated_runs_agree_to_the_last_bit_whatever_the_workers(native, causal):
    keys = native.micro_tile(native.isas()[0])[1]
    results = []
    for workers in range(1, workers_here(native) + 1):
        options = {"blocks": (16, keys), "workers": workers}
        case = Case(2, 3, 1, 90, 203, 48, causal=causal, options=options)
        attention = case.attention(native)
        results += [case.run(attention) for _ in range(10)]
    assert all((result == results[0]).all() for result in results)


def test_the_default_blocks_can_be_computed_and_give_every_worker_a_tile(native, isa):
    shapes = [
        (1, 1, 1, 1, 1),
        (1, 1, 1, 4096, 64),
        (2, 8, 512, 512, 80),
        (1, 40, 16384, 16384, 128),
        (1, 3, 97, 700, 512),
    ]
    for batch, heads, seq_q, seq_k, head_dim in shapes:
        for causal in (False, True):
            for workers in range(1, workers_here(native) + 1):
                m, n = native.default_blocks(batch, heads, seq_q, seq_k, head_dim, "float32", causal, workers, isa)
                native.check_blocks(m, n, isa)
                assert m <= seq_q
                if seq_q >= 64 * workers:
                    assert batch * heads * -(-seq_q // m) >= workers


def arguments(native: ModuleType, **changes: object) -> dict:
    keys = native.micro_tile(native.isas()[0])[1]
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 64, "seq_k": 64, "head_dim": 64}
    return {**sizes, "blocks": (32, keys), **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 0}, "batch = 0 is out of range"),
        ({"heads": -1}, "heads = -1"),
        ({"seq_q": 2**33}, "seq_q = 8589934592"),
        ({"head_dim": 513}, "head_dim = 513 is out of range: it must be between 1 and 512"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"kv_heads": 8}, "kv_heads = 8 does not divide heads = 4"),
        ({"causal": True, "seq_q": 65}, "seq_q must be at most seq_k"),
        ({"dtype": "float16"}, "'float16' is unknown: choose float32 or bfloat16"),
        ({"blocks": (0, 64)}, "Blocks 0x64 cannot be computed"),
        ({"blocks": (64, 33)}, "n a multiple of"),
        ({"blocks": (64, 10**12)}, "the nearest blocks that can are 64x"),
        ({"workers": 0}, "workers = 0"),
        ({"workers": 4096}, "workers = 4096 is more than the cores"),
        ({"isa": "sse9"}, "'sse9' cannot be used here"),
        ({"batch": 2**31 - 1, "seq_k": 2**31 - 1}, "too many elements to count"),
    ],
)
def test_an_attention_that_cannot_be_computed_is_refused_in_one_sentence(native, changes, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        native.Attention(**arguments(native, **changes))
    assert str(refusal.value).find(". ") == -1
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("missing", range(4))
def test_an_operand_without_an_address_is_refused_before_anything_is_written(native, missing):
    memory = np.zeros(64 * 64 * 4, np.float32)
    addresses = [memory.ctypes.data] * 4
    addresses[missing] = 0
    with pytest.raises(ValueError, match=f"{'QKVO'[missing]} has address 0"):
        native.Attention(**arguments(native)).run(*addresses)
    assert (memory == 0).all()
