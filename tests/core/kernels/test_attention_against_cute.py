"""Layouts, descriptors and maps of the Hopper attention against CuTe's, as test_against_cute.py has a product's."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.kernels import attention_sm90, gemm_sm90
from pyperf_suite.kernels.attention import Shape
from pyperf_suite.kernels.tensor_map import TensorMap, widest_span
from tests.core.kernels.test_against_cute import (
    ADDRESS,
    HERE,
    LEADING_OFFSET,
    Answers,
    answers,
    cute_name,
    cutlass,
    encoded,
    mistaken,
    numbers,
    own_name,
    statement,
)

pytestmark = pytest.mark.slow

__all__ = ["cutlass", "encoded"]  # fixtures
ASKED = ("maps", "descriptors", "head_maps", "weights")
HEADS, SEQ = 6, 1000
VALUES = tuple(itertools.product(attention_sm90.HEAD_DIMS, (16, 80, 112, 128, 176)))  # head_dim and keys of V
PROMOTION = 16  # where it is among the numbers of a map: a hint, which is 256 bytes by ours and 128 by CuTe's


def head_maps() -> dict[tuple[int, int], TensorMap]:
    """Maps of Q, K, V and O by their box's rows and the head_dim that is computed with; a model's is 8 less."""
    shape, found = Shape(1, HEADS, HEADS, SEQ, SEQ), dict[tuple[int, int], TensorMap]()
    for one in attention_sm90.default_set():
        for each in one.tensor_maps((ADDRESS, ADDRESS, ADDRESS, ADDRESS), shape, one.head_dim - 8):
            found[each.box[1], one.head_dim] = each
    return found


@pytest.fixture(scope="module")
def cases_h() -> str:
    """Q and K of each default instance K-major, V of some keys at each head_dim MN-major, and the maps of all."""
    lines = []
    for rows, dim in head_maps():
        numbers_of = f"{rows}, {dim}, {widest_span(2 * dim)}"
        lines += [f"OPERAND(K, {numbers_of})\n", f"HEAD_MAP({numbers_of}, {SEQ}, {dim - 8}, {HEADS})\n"]
    for dim, keys in VALUES:
        lines.append(f"OPERAND(MN, {dim}, {keys}, {widest_span(2 * dim)})\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def cute(request: pytest.FixtureRequest, cases_h: str) -> Answers:
    return answers(request, "against_cute_attention.cpp", cases_h, HERE / "cute_attention_answers.xz", ASKED)


@pytest.fixture(scope="module")
def ours(compiled: Callable[..., Path], cases_h: str) -> Callable[..., Answers]:
    """Our headers' answers, with a mistake in attention_tile.cuh where one is given: ours("right", "wrong")."""
    _, headers = attention_sm90.sources()

    def with_mistake(right: str = "", wrong: str = "") -> Answers:
        tile = mistaken(headers["attention_tile.cuh"], {right: wrong} if right else {})
        texts = {"tile.cpp": (HERE / "against_cute_attention_tile.cpp").read_text(), "cases.h": cases_h}
        texts |= {name: headers[name] for name in ("schedule.cuh", "tile.cuh")} | {"attention_tile.cuh": tile}
        program = compiled("tile", texts, ("-std=c++17", "-O1", "-Wall", "-Wextra", "tile.cpp"))
        return lambda what: numbers(program, what)

    return with_mistake


@pytest.mark.parametrize("table", ["maps", "descriptors", "weights"])
def test_operands_lie_where_cute_has_them(cute, ours, table):
    mine, theirs = ours()(table), cute(table)
    if table == "descriptors":
        # From panel to panel: where a wgmma reads a single one of V, CuTe leaves it zero, and ours has it all the same.
        single = np.concatenate([np.full(keys // 16, dim == 64) for dim, keys in VALUES])
        unused = LEADING_OFFSET * np.concatenate([np.zeros(mine.size - single.size, np.int64), single])
        assert not np.any(theirs & unused)
        mine = mine & ~unused
    np.testing.assert_array_equal(mine, theirs)
    print(f"{theirs.size} {table} agree")


@pytest.mark.parametrize(
    ("table", "right", "wrong"),
    [
        ("maps", "widest_span(head_dim * 2)", "32"),
        ("descriptors", "step / steps * panel.bytes()", "step / steps * panel.span()"),
        ("descriptors", "{head_dim, keys, 2, true, 1}", "{head_dim, keys, 2, false, 1}"),
    ],
)
def test_a_mistake_in_the_tiles_arithmetic_is_seen(cute, ours, table, right, wrong):
    mine, theirs = ours(right, wrong)(table), cute(table)
    unused = LEADING_OFFSET if table == "descriptors" else 0
    assert mine.size != theirs.size or np.any((mine ^ theirs) & ~unused)


def test_every_map_of_heads_is_encoded_as_cute_encodes_it(cute, encoded):
    maps = head_maps()
    own, theirs = np.array([encoded(each) for each in maps.values()]), cute("head_maps").reshape(len(maps), -1)
    np.testing.assert_array_equal(np.delete(own, PROMOTION, 1), np.delete(theirs, PROMOTION, 1))
    print(f"{len(own)} maps of heads agree")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("", ""), ("{%0, %1, %", "{%1, %0, %"), ("accumulate, 1, 1, 1;", "accumulate, 1, 1, 0;")],
    ids=["as it is", "the weights exchanged", "V K-major"],
)
def test_the_wgmma_with_weights_in_registers_is_the_instruction_that_cute_issues(cutlass, compiled, right, wrong):
    _, headers = attention_sm90.sources()
    header = mistaken(headers["wgmma.cuh"], {right: wrong} if right else {}).replace("#pragma once\n", "")
    files = [cutlass / "cute" / "arch" / name for name in ("mma_sm90_gmma.hpp", "mma_sm90_gmma_ext.hpp")]
    structures = dict(re.findall(r"struct (MMA_\w+)\s*\{(.*?)#else", "".join(map(Path.read_text, files)), re.DOTALL))
    differ = []
    for kernel in (
        attention_sm90.specialise(dim, dtype) for dim in attention_sm90.HEAD_DIMS for dtype in ("bf16", "fp16")
    ):
        macros = [option[2:].split("=") for option in kernel.options() if option.startswith("-D")]
        text = "".join(f"#define {name} {value}\n" for name, value in macros) + header
        made = compiled("wgmma.ii", {"wgmma.cpp": text}, ("-E", "-P", "wgmma.cpp")).read_text()
        mine = statement(made[made.index("const unsigned* a") :], own_name).replace(
            "setp.eq.b32p,0,0", "setp.ne.b32p,scale_D,0"
        )
        kind = {"bf16": "BF16", "fp16": "F16"}[kernel.dtype]
        transposed = gemm_sm90.specialise(64, kernel.head_dim, stages=2, in_type=kernel.dtype, b_transposed=False)
        theirs = structures[f"MMA_64x{kernel.head_dim}x16_F32{kind}{kind}_RS"]
        differ += [kernel.name] * (mine != statement(theirs, lambda operand, like=transposed: cute_name(operand, like)))
    assert bool(differ) is bool(right), differ
