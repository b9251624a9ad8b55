import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.kernels.disassembly import disassemble
from pyperf_suite.kernels.matmul import (
    Configuration,
    GroupedProduct,
    Product,
    compile_for,
    default_set,
)

pytestmark = pytest.mark.slow

TILE = (16, 32, 32)
SCHEDULES = [
    {"policy": "data_parallel"},
    {"policy": "persistent", "workers": 3},
    {"policy": "split_k", "splits": 3},
    {"policy": "stream_k", "workers": 5},  # some tiles whole, some shared by two units
    {"policy": "stream_k", "workers": 47},  # more workers than tiles: tiles shared by many
]


def named(value: object) -> str:
    """Name of a parametrized test."""
    if isinstance(value, dict):
        return "-".join(map(str, value.values()))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture(scope="module")
def interpreted(interpreter) -> Callable[..., dict]:
    """Runs a product in a process where Triton interprets."""
    ask = interpreter("interpreted_matmul.py")

    def run(shape: tuple[int, int, int], spread: int = 1, **configuration: object) -> dict:
        requested = {"tile": TILE, "dtype": "float16", "out_dtype": "float32", **configuration}
        return ask({"shape": shape, "configuration": requested, "spread": spread})

    return run


BY = ("addresses", "descriptors")
INTERPRETED = {
    "shapes that break things": [
        ((m, n, k), {**schedule, "splits": min(schedule.get("splits", 1), -(-k // TILE[2]))})
        for (m, n, k), schedules in (
            *(((1, 1, 1), SCHEDULES[:1]), ((1, 67, 33), SCHEDULES[2:3]), ((37, 1, 64), SCHEDULES[3:4])),
            *(((16, 32, 32), SCHEDULES[1:2]), ((17, 33, 33), SCHEDULES[4:]), ((37, 67, 99), SCHEDULES)),
        )
        for schedule in schedules
    ],
    "layouts": [
        ((49, 65, 130), {"layout": layout, "operands": operands, "policy": "stream_k", "workers": 5, "group": 2})
        for layout in ("NN", "TN", "NT", "TT")
        for operands in BY
    ],
    # A wide tile leaves in halves: the second half lies within C, and beyond it.
    "wide tiles": [
        (shape, {"tile": (16, 128, 32), "operands": "descriptors", **schedule})
        for shape, schedules in (((33, 193, 131), SCHEDULES), ((16, 63, 100), SCHEDULES[:1]))
        for schedule in schedules
    ],
    "dtypes": [
        ((37, 53, 71), {"dtype": dtype, "operands": operands})
        for dtype in ("float16", "bfloat16", "float32", "tfloat32", "float8_e4m3fn")
        for operands in BY
    ],
    "int8, summed exactly also between units": [
        ((37, 53, 131), {"dtype": "int8", "out_dtype": "int32", "operands": operands, **schedule})
        for operands, schedule in (("addresses", SCHEDULES[3]), ("descriptors", SCHEDULES[2]))
    ],
    "float16 results": [((37, 53, 71), {"out_dtype": "float16"})],
    "strides other than one": [((37, 53, 71), {"spread": 3})],
}


@pytest.mark.parametrize(
    ("shape", "requested"),
    [
        pytest.param(*case, id=f"{what}-{named(case[0])}-{named(case[1])}")
        for what, cases in INTERPRETED.items()
        for case in cases
    ],
)
def test_a_product_is_right_keeps_to_its_rows_and_has_the_same_bits_in_a_second_launch(interpreted, shape, requested):
    outcome = interpreted(shape, **requested)
    assert outcome["message"] == ""
    assert outcome["padding_untouched"]
    assert outcome["same_again"]


@pytest.mark.parametrize("splits", [2, 4])
def test_split_k_sums_its_slices_in_ascending_k(interpreted, splits):
    assert interpreted((40, 40, 300), dtype="float32", layout="NN", policy="split_k", splits=splits)["sums"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tile": (100, 128, 32)}, "the nearest is 128x128x32"),
        ({"tile": (128, 128, 8)}, "the nearest is 128x128x16"),
        ({"tile": (512, 128, 32), "operands": "descriptors"}, "from 16 to 256"),
        ({"dtype": "int7"}, "choose from float16"),
        ({"dtype": "int8"}, "int8 into bfloat16 was requested of Triton's matmul, but int8 is summed in int32"),
        ({"out_dtype": "int32"}, "bfloat16 into int32"),
        ({"dtype": "int8", "out_dtype": "int32", "tile": (16, 16, 16)}, "k from 32 for int8: the nearest is 16x16x32"),
        ({"dtype": "float8_e4m3fn", "tile": (16, 16, 16)}, "the nearest is 16x16x32"),
        ({"out_dtype": "float8_e4m3fn"}, "choose from float16, bfloat16, float32, int32"),
        ({"layout": "XY"}, "NN, TN, NT, TT"),
        ({"policy": "round_robin"}, "stream_k"),
        ({"operands": "textures"}, "descriptors"),
        ({"stages": 0}, "at least 1 stage"),
        ({"warps": 6}, "power of two"),
        ({"policy": "split_k", "splits": 5}, "between 1 and 4"),
        ({"policy": "persistent", "splits": 2}, "only split_k"),
        ({"policy": "persistent", "workers": 0}, "at least 1 of each"),
        ({"policy": "persistent", "workers": 50_000}, "32 bits"),
    ],
    ids=named,
)
def test_a_configuration_or_schedule_that_cannot_be_is_refused_in_one_sentence(change, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        Configuration(**{"tile": (128, 128, 32), **change}).schedule(256, 256, 128)
    assert ". " not in str(refusal.value)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_compiler_that_is_not_told_what_divides_drops_the_pipeline(target, triton_cache, tools):
    pytest.importorskip("triton")
    usual = next(each for each in default_set(target) if not each.descriptors)
    binaries = [compile_for(target, replace(usual, hints=hints)) for hints in ("all", "odd_a", "none")]
    told, odd, untold = (disassemble(each.cubin, each.name).instructions.get("LDGSTS", 0) for each in binaries)
    assert told > odd > untold == 0
    # With one odd stride the operand of that stride has no copies that run ahead.
    shared = [each.shared_bytes for each in binaries]
    assert shared == sorted(shared, reverse=True)
    assert shared[0] > shared[1]


GROUPED = Configuration((16, 32, 16))


def product_of(*sizes: int) -> Product:
    pytest.importorskip("torch")
    return Product(Configuration((64, 64, 64)), *sizes, "cpu")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: product_of(0, 1, 1), "at least 1"),
        (lambda: product_of(2**31 - 1, 16, 16), "M = 2147483647"),
        (lambda: product_of(16, 16, 2**31), "K = 2147483648"),
        *(
            (lambda rows=rows, workers=workers: GroupedProduct(GROUPED, rows, 8, 8, workers), "each is at least 1")
            for rows, workers in (([], 1), ([0, 0], 1), ([4, -1], 1), ([4], 0))
        ),
        *((lambda name=name: default_set(name), "is not a target") for name in ("90", "sm_", "gfx942", "sm_9x")),
    ],
)
def test_sizes_and_targets_that_cannot_be_are_refused_in_one_sentence(ask, words):
    with pytest.raises(ValueError, match=words) as refusal:
        ask()
    assert ". " not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "operands", "instructions"),
    [
        ("sm_80", "addresses", {"IMMA"}),
        ("sm_90", "descriptors", {"IGMMA"}),
        ("sm_100", "descriptors", {"UTCIMMA", "IMMA"}),  # Triton 3.7 keeps to the older instruction there
    ],
)
def test_int8_compiles_to_tensor_core_code_of_integers(target, operands, instructions, triton_cache, tools):
    pytest.importorskip("triton")
    requested = Configuration((128, 128, 64), "int8", "int32", stages=3, warps=8, operands=operands)
    binary = compile_for(target, requested)
    assert instructions & set(disassemble(binary.cubin, binary.name).instructions)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "n", "k", "workers"),
    [
        ([16, 16], 32, 16, 2),  # every tile whole
        ([33, 0, 1, 70], 50, 37, 3),  # an expert without rows, edges everywhere, more tiles than workers
        ([5], 7, 3, 9),  # more workers than tiles
        ([0, 0, 12], 64, 40, 1),
    ],
)
def test_products_of_experts_come_out_right_in_one_launch(interpreter, rows, n, k, workers, dtype):
    ask = interpreter("interpreted_matmul.py")
    assert ask({"rows": rows, "n": n, "k": k, "workers": workers, "dtype": dtype})["message"] == ""
