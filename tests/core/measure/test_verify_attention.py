from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyperf_suite.measure import verify_attention as module
from pyperf_suite.measure.verify_attention import KeyHead, Roundings, verify_attention
from tests.core.measure.test_verify import Remembered, to_bfloat16

# (batch, heads, kv_heads, seq_q, seq_k, head_dim)
Shape = tuple[int, int, int, int, int, int]

SHAPES: list[Shape] = [
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 33, 65, 40),
    (1, 3, 1, 97, 97, 16),
    (1, 2, 2, 1, 300, 64),
]
MANY: Shape = (2, 6, 2, 192, 256, 24)
FEW_PAIRS = 60_000  # less than MANY has, enough for some of its groups in full
NO_GROUP = 6_000  # so few that no group of MANY is compared in full


ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda values: values.astype(np.float32),
    "float16": lambda values: values.astype(np.float16).astype(np.float32),
    "bfloat16": to_bfloat16,
}


class Attention:
    """A plain attention with a mask [seq_q, seq_k] and a key head for each head, both open to mistakes."""

    def __init__(self, shape: Shape, causal: bool, dtype: str = "bfloat16", seed: int = 0) -> None:
        batch, heads, kv_heads, queries, keys, head_dim = shape
        random = np.random.default_rng(seed)
        self.dtype, self.causal = dtype, causal
        self.q, self.do = (ROUND[dtype](random.standard_normal((batch, heads, queries, head_dim))) for _ in "ab")
        self.k, self.v = (ROUND[dtype](random.standard_normal((batch, kv_heads, keys, head_dim))) for _ in "ab")
        self.offset = keys - queries
        self.mask = np.tri(queries, keys, self.offset if causal else keys, dtype=bool)
        self.key_head = np.arange(heads) // (heads // kv_heads)
        self.scale = 1 / np.sqrt(head_dim)
        self.between: Callable[[np.ndarray], np.ndarray] = lambda values: values

    def outputs(self, backward: bool) -> dict[str, np.ndarray]:
        """Outputs of a kernel with these mistakes; `between` rounds its scores and probabilities."""
        q, do = self.q.astype(np.float64), self.do.astype(np.float64)
        k, v = (each.astype(np.float64)[:, self.key_head] for each in (self.k, self.v))
        scores = self.between(self.scale * q @ k.swapaxes(2, 3))
        weights = np.exp(np.where(self.mask, scores - scores.max(axis=-1, keepdims=True), -np.inf))
        p = self.between(weights / weights.sum(axis=-1, keepdims=True))
        if not backward:
            return {"o": ROUND[self.dtype](p @ v)}
        dp = self.between(do @ v.swapaxes(2, 3))
        ds = self.scale * self.between(p * (dp - (p * dp).sum(axis=-1, keepdims=True)))
        dk, dv = np.zeros(self.k.shape), np.zeros(self.v.shape)
        for head, key_head in enumerate(self.key_head):
            dk[:, key_head] += ds[:, head].swapaxes(1, 2) @ q[:, head]
            dv[:, key_head] += p[:, head].swapaxes(1, 2) @ do[:, head]
        return {name: ROUND[self.dtype](each) for name, each in (("dq", ds @ k), ("dk", dk), ("dv", dv))}

    def verify(self, outputs: dict[str, Any], **options: Any):
        """The verdict on them."""
        gradient = None if "o" in outputs else self.do
        return verify_attention(outputs, self.q, self.k, self.v, gradient, self.causal, self.dtype, **options)


def triangle(attention: Attention, last: int) -> np.ndarray:
    return np.tri(*attention.mask.shape, last, dtype=bool)


# Mistakes of a kernel: the field that is wrong, and how.
MISTAKES: dict[str, tuple[str, Callable[[Attention], Any]]] = {
    "sees one key too many": ("mask", lambda right: triangle(right, right.offset + 1)),
    "misses the newest key": ("mask", lambda right: triangle(right, right.offset - 1)),
    "is aligned at the top left": ("mask", lambda right: triangle(right, 0)),
    "masks nothing": ("mask", lambda right: np.ones_like(right.mask)),
    "drops a block of keys": ("mask", lambda right: right.mask & (np.arange(right.mask.shape[1]) // 32 != 1)),
    "strides over key heads": ("key_head", lambda right: np.arange(len(right.key_head)) % right.k.shape[1]),
    "scales by the padded head_dim": ("scale", lambda right: 1 / np.sqrt(32)),
}


def mistaken(attention: Attention, mistake: str) -> Attention:
    """The same, which makes the mistake from now on."""
    name, wrong = MISTAKES[mistake]
    setattr(attention, name, wrong(attention))
    return attention


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ROUND)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_outputs_pass_to_the_last_element(shape, dtype, causal, backward):
    attention = Attention(shape, causal, dtype)
    verdict = attention.verify(attention.outputs(backward))
    assert verdict.passed, verdict.message
    assert verdict.method == "full"


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_and_probabilities_may_be_rounded_to_the_dtype(dtype, backward):
    attention = Attention(MANY, True, dtype)
    attention.between = lambda values: ROUND[dtype](values).astype(np.float64)
    verdict = attention.verify(attention.outputs(backward))
    assert verdict.passed, verdict.message


@pytest.mark.slow
@pytest.mark.parametrize("budget", [FEW_PAIRS, NO_GROUP])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ROUND)
def test_right_outputs_pass_where_only_samples_are_compared(dtype, backward, budget):
    for seed in range(4):
        attention = Attention(MANY, seed % 2 == 0, dtype, seed)
        verdict = attention.verify(attention.outputs(backward), pair_budget=budget, seed=seed)
        assert verdict.passed, verdict.message
        assert verdict.method == "sampled"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1 << 25, FEW_PAIRS, NO_GROUP])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_kernel_fails_that(mistake, backward, budget):
    attention = mistaken(Attention(MANY, causal=True), mistake)
    assert not attention.verify(attention.outputs(backward), pair_budget=budget).passed


@pytest.mark.parametrize(
    ("shape", "place", "is_visible", "message"),
    [
        ((1, 4, 4, 1, 4096, 64), np.s_[:, 0], False, "misses the first key"),
        ((1, 4, 4, 1, 4096, 64), np.s_[:, -1], False, "misses the last key"),
        ((1, 4, 4, 16, 4096, 32), np.s_[range(15), range(4081, 4096)], True, "one key too many"),
    ],
    ids=["first", "last", "too many"],
)
def test_one_key_of_thousands_is_seen_though_each_output_is_within_its_limit(shape, place, is_visible, message):
    attention = Attention(shape, causal=True)
    attention.mask[place] = is_visible
    verdict = attention.verify(attention.outputs(backward=False))
    assert is_visible or verdict.worst_element_ratio < 1
    assert not verdict.passed
    assert message in verdict.message


@pytest.mark.parametrize("name", ["dk", "dv"])
def test_a_key_block_nobody_wrote_in_a_group_that_is_not_compared_breaks_its_identity(name):
    attention = Attention(MANY, causal=False)
    outputs = attention.outputs(backward=True)
    outputs[name][1, 0, 64:96] = 0
    verdict = attention.verify(outputs, pair_budget=NO_GROUP)
    assert not verdict.passed
    assert "batch 1, key head 0" in verdict.message
    assert ("Qᵀ·dQ = dKᵀ·K" if name == "dk" else "Σⱼ dVⱼ = Σᵢ dOᵢ") in verdict.message


@pytest.mark.parametrize("name", ["o", "dq", "dk", "dv"])
def test_one_wrong_element_is_named_with_its_place(name):
    attention = Attention((2, 4, 2, 33, 65, 40), causal=True)
    outputs = attention.outputs(backward=name != "o")
    outputs[name][1, 1, 20, 7] += 1.0
    verdict = attention.verify(outputs)
    assert not verdict.passed
    assert verdict.worst_at == (1, 1, 20, 7)
    assert f"{name}[1, 1, 20, 7] is" in verdict.message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_with_its_place_wherever_it_stands(value):
    attention = Attention(MANY, causal=True)
    outputs = attention.outputs(backward=False)
    outputs["o"][1, 3, 101, 5] = value
    verdict = attention.verify(outputs, pair_budget=NO_GROUP)
    assert not verdict.passed
    assert f"o[1, 3, 101, 5] is {value}" in verdict.message


def test_an_error_everywhere_fails_by_its_norm_though_each_element_is_within_its_limit():
    attention = Attention(MANY, causal=False)
    outputs = attention.outputs(backward=False)
    outputs["o"] = to_bfloat16(outputs["o"] * 1.03)
    verdict = attention.verify(outputs)
    assert not verdict.passed
    assert "relative norm" in verdict.message


def test_a_block_of_queries_twice_as_long_as_the_samples_are_apart_cannot_be_wrong_unseen():
    attention = Attention((1, 2, 2, 1024, 64, 16), causal=False)
    right = attention.outputs(backward=False)["o"]
    budget = 2 * 2 * 64 * 16  # sixteen queries of each head
    for begin in range(0, 1024 - 128, 64):
        wrong = {"o": right.copy()}
        wrong["o"][0, 1, begin : begin + 128] = 0
        assert not attention.verify(wrong, pair_budget=budget, seed=begin).passed


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1 << 25, FEW_PAIRS])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("mistake", ["", "sees one key too many", "drops a block of keys"])
def test_tensors_are_judged_on_their_device_as_arrays_are_on_the_host(mistake, backward, budget):
    torch = pytest.importorskip("torch")
    attention = Attention(MANY, causal=True)
    if mistake:
        mistaken(attention, mistake)
    outputs = attention.outputs(backward)
    on_host = attention.verify(outputs, pair_budget=budget)
    for name in ("q", "k", "v", "do"):
        setattr(attention, name, torch.from_numpy(getattr(attention, name)).bfloat16())
    tensors = {name: torch.from_numpy(out).bfloat16() for name, out in outputs.items()}
    on_device = attention.verify(tensors, pair_budget=budget)
    assert on_device.passed == on_host.passed == (not mistake)
    assert (on_device.method, on_device.worst_at) == (on_host.method, on_host.worst_at)
    assert on_device.worst_element_ratio == pytest.approx(on_host.worst_element_ratio, rel=1e-4)
    assert on_device.relative_norm == pytest.approx(on_host.relative_norm, rel=1e-6)


def test_shapes_that_do_not_fit_and_operands_that_are_not_finite_are_errors():
    attention = Attention((1, 4, 2, 8, 8, 16), causal=False)
    outputs = attention.outputs(backward=False)
    with pytest.raises(ValueError, match="do not fit together"):
        attention.verify({"o": outputs["o"][..., :8]})
    with pytest.raises(ValueError, match="do not fit together"):
        attention.verify({"dq": outputs["o"]})
    attention.v[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="operand v holds a NaN"):
        attention.verify(outputs)


def along(*values: float) -> np.ndarray:
    """Vectors of four numbers, of which the first alone is not zero."""
    return np.array([[value, 0.0, 0.0, 0.0] for value in values], np.float32)


def test_limits_of_one_query_that_sees_two_keys_are_those_worked_out_by_hand():
    found = Roundings.of("bfloat16", 4, 9)
    single = 2.0**-24
    assert found == Roundings(2.0**-8, 2.0**-126, 2 * single, (3 + 16) * single)
    u, smallest, of_scores, of_others = 2.0**-8, 2.0**-20, 2.0**-6, 2.0**-7
    limits, scale = Roundings(u, smallest, of_scores, of_others), 0.5
    keys, values, q, do = along(1, 3, 2), along(1, -2, 5), along(2), along(1.5)
    head = KeyHead.of(keys, values)
    assert (head.longest_key, head.longest_value) == (3, 5)
    panel = module.attend(q, np.array([2]), head, scale, limits)
    # Scores are 1 and 3, and of a score of random signs 0.5 / 2 x 3 x 2 is the size.
    p = np.array([1, np.e**2]) / (1 + np.e**2)
    o, size = p[0] - 2 * p[1], 1.5
    relative = np.array([1, 3]) * (u + 2 * single) + u * (1 + size) + of_scores * size + of_others
    wobble = p * relative + smallest
    assert panel.p[0] == pytest.approx(p)
    assert panel.relative[0] == pytest.approx(relative)
    assert panel.log_sum_exp == pytest.approx(np.log(np.e + np.e**3))
    spread = wobble**2 @ [1, 4] + o**2 * np.sum(wobble**2)
    assert panel.o[0] == pytest.approx([o, 0, 0, 0])
    assert panel.o_limit[0] == pytest.approx([4 * np.sqrt(spread) - u * o + smallest] + [smallest] * 3)
    # A mask that misses the first key moves the output by p / (1 - p); the last has too much weight to say.
    weights = module.mask_weights(panel, np.array([2]), head, scale)
    beyond = np.exp(2) / (np.e + np.e**3)
    assert weights[:, 0] == pytest.approx([-p[0] / (1 - p[0]), 0, beyond / (1 + beyond)])
    gradients = module.differentiate(panel, do, head, limits)
    dp, delta = np.array([1.5, -3.0]), 1.5 * o
    of_delta = u * np.sqrt(delta**2 + np.sum((p * dp) ** 2))
    of_values = of_scores * 5 / 2 * 1.5
    error = p * (abs(dp) * u + of_values + of_delta + abs(dp - delta) * (relative + u)) + smallest
    ds = p * (dp - delta)
    assert gradients.ds[0] == pytest.approx(ds)
    assert gradients.error_squares[0] == pytest.approx(error**2)
    dq, dq_limit = gradients.of_queries(head, scale, limits)
    expected = 0.5 * (ds[0] + 3 * ds[1])
    assert dq[0] == pytest.approx([expected, 0, 0, 0])
    assert dq_limit[0][0] == pytest.approx(4 * 0.5 * np.sqrt(error**2 @ [1, 9]) + u * abs(expected) + smallest)
    of_keys = module.KeyGradients(head, scale)
    for _ in range(2):  # two heads share the key head
        of_keys.add(gradients)
        of_keys.end_head()
    sums = of_keys.references(limits)
    assert sums["dk"][:, 0] == pytest.approx([*(2 * ds), 0])
    assert sums["dv"][:, 0] == pytest.approx([*(2 * 1.5 * p), 0])
    dk_limit = 4 * np.sqrt(2 * 0.25 * error**2 * 4) + u * abs(2 * ds) + smallest
    dv_limit = 4 * np.sqrt(2 * wobble**2 * 1.5**2) + u * 3 * p + smallest
    assert sums["dk_limit"][:, 0] == pytest.approx([*dk_limit, smallest])
    assert sums["dv_limit"][:, 0] == pytest.approx([*dv_limit, smallest])


def test_queries_are_taken_from_equal_spans_with_the_first_and_the_last_of_all():
    drawn = module._spread_over(100, 4, np.random.default_rng(0)).tolist()
    assert (drawn[0], drawn[-1], drawn) == (0, 99, sorted(set(drawn)))
    inner = drawn[1:-1] if len(drawn) == 6 else drawn
    assert {query // 25 for query in inner} == {0, 1, 2, 3}
    assert module._spread_over(2, 9, np.random.default_rng(0)).tolist() == [0, 1]
    assert module._spread_over(1, 1, np.random.default_rng(0)).tolist() == [0]


@pytest.mark.parametrize(("backward", "cost"), [(False, 1), (True, 2)])
def test_up_to_its_budget_of_pairs_every_element_is_compared(backward, cost):
    attention = Attention((2, 4, 2, 8, 12, 16), causal=True)
    # Queries see 5 to 12 keys: 68 pairs of each of 8 heads, and a pair of gradients costs two.
    pairs, outputs = 68 * 8 * cost, attention.outputs(backward)
    assert [attention.verify(outputs, pair_budget=budget).method for budget in (pairs, pairs - 1)] == [
        "full",
        "sampled",
    ]


def test_half_of_a_budget_is_for_whole_groups_and_half_for_queries_of_every_head():
    attention, keep = Attention(MANY, causal=False), Remembered()
    attention.verify(attention.outputs(backward=False), pair_budget=500_000, keep=keep)
    looked_at = [name.partition(" queries of ")[0] for name in keep.values]
    # 192 x 256 pairs of three heads fit once into 250,000, and 256 keys of a query of each of twelve heads 81 times.
    assert sum(each == "all" for each in looked_at) == 1
    assert {int(each) for each in looked_at if each != "all"} <= {81, 82, 83}
    assert len(looked_at) == 4
