import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.kernels.attention import Attention, Configuration, Shape
from pyperf_suite.kernels.attention_backward import Gradients
from pyperf_suite.kernels.attention_defaults import default_configuration
from pyperf_suite.kernels.attention_schedule import key_steps, place, query_steps

# Errors in units of rounding of what an element is summed from, absolute values taken. Weights, their gradients and
# results are rounded once each; in float32 what exponentials make of their arguments' errors counts instead.
LIMITS = {"float32": 32, "float16": 4, "bfloat16": 4}


@pytest.fixture(scope="module")
def interpreted(interpreter) -> Callable[..., dict]:
    """Runs an attention in a process where Triton interprets."""
    ask = interpreter("interpreted_attention.py")

    def run(seq_q: int, seq_k: int, heads=2, kv_heads=2, batch=1, together=None, **configuration: object) -> dict:
        shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq_q, "seq_k": seq_k}
        requested = {"block_m": 16, "block_n": 32, "head_dim": 16, "dtype": "float16", **configuration}
        return ask({"shape": shape, "configuration": requested, "together": together})

    return run


# Each is run forward and backward, causal unless it says otherwise.
INTERPRETED = {
    # seq_q x seq_k around blocks of 16 x 32: decode, a single key, one less and one more than a block, several blocks.
    "sequences that break things": [
        {"seq_q": seq_q, "seq_k": seq_k, "causal": causal}
        for seq_q, seq_k, causal in (
            *((1, 1, True), (1, 37, True), (15, 31, False), (16, 32, True), (16, 32, False)),
            *((17, 33, True), (33, 97, False), (33, 97, True)),
        )
    ],
    "more queries than keys": [{"seq_q": 37, "seq_k": 21, "causal": False}],
    "a head_dim that is padded unseen": [
        {"seq_q": 19, "seq_k": 41, "head_dim": head_dim, "operands": operands}
        for head_dim, operands in ((40, "addresses"), (72, "descriptors"))
    ],
    "a head_dim that TMA cannot take": [
        {"seq_q": 19, "seq_k": 41, "head_dim": head_dim, "causal": False} for head_dim in (1, 33)
    ],
    "grouped heads": [{"seq_q": 18, "seq_k": 35, "heads": 4, "kv_heads": each, "batch": 2} for each in (1, 2)],
    "dtypes": [
        {"seq_q": 33, "seq_k": 53, "head_dim": 24, "dtype": dtype, "operands": operands}
        for dtype in LIMITS
        for operands in ("addresses", "descriptors")
    ],
    "heads visited together": [
        {"seq_q": 20, "seq_k": 20, "heads": 4, "kv_heads": 2, "together": together} for together in (3, 100)
    ],
    "blocks of any proportion": [
        {"seq_q": 50, "seq_k": 75, "block_m": m, "block_n": n} for m, n in ((64, 16), (16, 16), (32, 64))
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{what}-{'-'.join(map(str, case.values()))}")
        for what, cases in INTERPRETED.items()
        for case in cases
    ],
)
def test_every_element_of_every_output_is_within_its_limit_and_a_second_launch_has_the_same_bits(
    interpreted, case, backward
):
    outcome = interpreted(**{"causal": True, **case}, backward=backward)
    assert "failed" not in outcome, outcome["failed"]
    limits = dict.fromkeys(outcome["errors"], LIMITS[case.get("dtype", "float16")]) | {"lse": LIMITS["float32"]}
    assert {name: error for name, error in outcome["errors"].items() if not error <= limits[name]} == {}
    assert outcome["same_again"]


SIZES = st.integers(1, 70)
SIDES = st.sampled_from([1, 4, 16])


def mask_of(seq_q: int, seq_k: int, causal: bool) -> np.ndarray:
    """Mask of the keys that each query sees."""
    return np.arange(seq_k)[None, :] <= np.arange(seq_q)[:, None] + (seq_k - seq_q if causal else seq_k)


@given(SIZES, SIZES, SIDES, SIDES, st.booleans())
def test_key_steps_skip_what_no_query_sees_and_mask_only_the_diagonal_and_the_edge(seq_q, extra, rows, step, causal):
    seq_k = seq_q + extra - 1
    mask = mask_of(seq_q, seq_k, causal)
    for first in range(0, seq_q, rows):
        seen = mask[first : first + rows]
        whole, end = key_steps(first, rows, step, seq_q, seq_k, causal)
        steps = [seen[:, begin : begin + step] for begin in range(0, seq_k, step)]
        assert [block.any() for block in steps] == [number < end for number in range(len(steps))]
        assert [block.all() and block.shape[1] == step for block in steps] == [n < whole for n in range(len(steps))]


@pytest.mark.slow
@given(SIZES, SIZES, SIDES, SIDES, st.booleans())
def test_query_steps_skip_queries_that_see_no_key_and_mask_only_the_diagonal(seq_q, extra, rows, step, causal):
    seq_k = seq_q + extra - 1
    mask = mask_of(seq_q, seq_k, causal)
    for first in range(0, seq_k, rows):
        begin, unmasked, end = query_steps(first, rows, step, seq_q, seq_k, causal)
        seen = mask[:, first : first + rows]
        steps = [seen[start : start + step] for start in range(0, seq_q, step)]
        assert [block.any() for block in steps] == [begin <= number < end for number in range(len(steps))]
        assert all(block.all() for block in steps[unmasked:end])
        # A block that hangs over the last key is masked as if the keys went on.
        if first + rows <= seq_k:
            assert not any(block.all() for block in steps[begin:unmasked])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_programs_visit_each_block_once_and_the_heaviest_of_their_heads_first(blocks, heads, together, descending):
    places = [place(program, blocks, heads, together, descending) for program in range(blocks * heads)]
    assert sorted(places) == [(head, block) for head in range(heads) for block in range(blocks)]
    for (head, block), (next_head, next_block) in itertools.pairwise(places):
        if head // together == next_head // together:
            assert next_block <= block if descending else next_block >= block
        else:
            assert next_head // together == head // together + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_m": 100}, "the nearest are 128x64"),
        ({"block_n": 8}, "the nearest are 128x16"),
        ({"block_m": 512, "operands": "descriptors"}, "from 16 to 256"),
        ({"head_dim": 0}, "at least 1"),
        ({"head_dim": 320, "operands": "descriptors"}, "padded to 512"),
        ({"dtype": "int8"}, "choose from float32, float16, bfloat16"),
        ({"operands": "textures"}, "choose from addresses, descriptors"),
        ({"stages": 0}, "at least 1 stage"),
        ({"warps": 6}, "power of two"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused_in_one_sentence(change, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        Configuration(**{"block_m": 128, "block_n": 64, "head_dim": 64, **change})
    assert ". " not in str(refusal.value)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((1, 0, 1, 1, 1), "heads = 0"),
        ((1, 6, 4, 8, 8), "do not divide 6"),
        ((2, 1 << 15, 1, 1 << 15, 1), "2147483648 rows"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused_in_one_sentence(sizes, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        Shape(*sizes)
    assert ". " not in str(refusal.value)


def test_programs_and_padding_are_counted_as_the_law_counts_them():
    pytest.importorskip("torch")
    configuration = Configuration(128, 64, 80)
    assert (configuration.padded_head_dim, configuration.waste) == (128, 1 - 80 / 128)
    assert Attention(configuration, Shape(2, 6, 3, 300, 512), "cpu").programs == 2 * 6 * 3
    gradients = Gradients(Configuration(128, 64, 80, backward=True), Shape(2, 6, 3, 300, 512), "cpu")
    assert gradients.programs == {"dk_dv": 2 * 3 * 4, "dq": 2 * 6 * 3}
    assert gradients.workspace_bytes == 4 * 2 * 6 * 300


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("head_dim", [1, 16, 40, 64, 72, 128, 256, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_is_a_default_configuration_for_every_head_dim_and_dtype(target, head_dim, dtype):
    for backward in (False, True):
        requested = default_configuration(target, head_dim, dtype, backward=backward)
        assert (requested.head_dim, requested.dtype, requested.backward) == (head_dim, dtype, backward)
        assert requested.descriptors == (
            target != "sm_80" and head_dim * (4 if dtype == "float32" else 2) % 16 == 0 and head_dim <= 256
        )
