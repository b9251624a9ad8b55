"""Layouts, descriptors, instructions and tensor maps of the kernels against CuTe's, which nobody here wrote.

What CuTe says takes minutes to compile, so cute_answers.xz holds it, by the hash of what was asked; what our headers
say is compiled apart from it in a second, so that headers with a mistake in them can be compared as well. Nothing needs
a GPU, nvcc or a CUDA toolkit. `pytest -rP` shows counts.
"""

import ctypes
import hashlib
import io
import itertools
import json
import lzma
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pyperf_suite.kernels import gemm_sm80, gemm_sm90
from pyperf_suite.kernels.gemm_sm90 import Specialisation, specialise
from pyperf_suite.kernels.tensor_map import TensorMap, widest_span
from tests.core.gpu_double.environment import built

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ANSWERS = HERE / "cute_answers.xz"
ASKED = ("maps", "descriptors", "accumulators", "tensor_maps", "fragments")
WGMMA_ROWS = 64
ELEMENTS = {"bf16": "Bf16", "fp16": "Fp16", "e4m3": "E4m3", "fp32": "Fp32"}
LAYOUTS = ("TN", "NN", "NT", "TT")
CLUSTERS = ((1, 1), (2, 1), (1, 2))
# M, N, K of a product, and where its operands begin.
SIZES = (2048, 2304, 1024)
ADDRESS = 1 << 40
# CuTe takes these headers alone of CUDA's own library, and of them the standard library's parts of the same names; of
# code for host or device, the host's.
STANDARD = ("cassert", "cstddef", "cstdint", "limits", "tuple", "type_traits", "utility")
SHIMS = {f"cuda/std/{name}": f"#pragma once\n#include <{name}>\n" for name in STANDARD} | {
    "nv/target": "#define NV_IF_TARGET(...)\n#define NV_IF_ELSE_TARGET(where, there, ...) { __VA_ARGS__ }\n"
}
SHIMS["cuda/std/utility"] += "namespace cuda::std { using namespace ::std; }\n"
LEADING_OFFSET = 0x3FFF << 16  # of a descriptor
PROMOTION = 12  # where it is among the numbers of a tensor map


class Case(NamedTuple):
    """A tile in shared memory: an operand's part of a stage, or the box in which results leave."""

    letter: str
    element: str
    mn_major: bool
    extent: int
    depth: int
    span: int
    most_shared: int  # CTAs of a cluster that may load it together

    @property
    def wgmma_rows(self) -> int:
        """Rows of M or N that one wgmma reads."""
        return {"A": WGMMA_ROWS, "B": self.extent, "C": 0}[self.letter]

    @property
    def steps(self) -> int:
        """Instructions along K."""
        return self.depth * self.element_bytes // 32

    @property
    def element_bytes(self) -> int:
        return {"e4m3": 1, "fp32": 4}.get(self.element, 2)

    @property
    def one_panel(self) -> bool:
        """True if a wgmma reads one panel of several swizzle rows, so that nothing is a leading offset away."""
        return self.mn_major and self.span > 16 and self.wgmma_rows * self.element_bytes == self.span

    @property
    def macro(self) -> str:
        """Its line of cases.h."""
        m, n, k = SIZES
        numbers = (self.extent, self.depth, self.span, self.wgmma_rows, self.most_shared)
        in_all = {"A": (m, k), "B": (n, k), "C": (m, n)}[self.letter]
        arguments = (ELEMENTS[self.element], "MN" if self.mn_major else "K", *numbers, *in_all)
        return f"OPERAND({', '.join(map(str, arguments))})\n"


def specialisations() -> Iterator[Specialisation]:
    """One for each pair of tiles that the Hopper kernel can multiply, in each cluster, type and storage."""
    everything = itertools.product(
        gemm_sm90.INPUT_TYPES,
        LAYOUTS,
        gemm_sm90.TILE_M,
        gemm_sm90.TILE_N,
        gemm_sm90.TILE_K_BYTES,
        CLUSTERS,
        gemm_sm90.MOST_SUMS,
    )
    for in_type, layout, m, n, k_bytes, (cluster_m, cluster_n), consumers in everything:
        try:
            yield specialise(
                m,
                n,
                k_bytes // gemm_sm90.INPUT_TYPES[in_type][0],
                2,
                consumers=consumers,
                cluster_m=cluster_m,
                cluster_n=cluster_n,
                in_type=in_type,
                a_transposed=layout[1] == "T",
                b_transposed=layout[0] == "T",
            )
        except ValueError:
            continue


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Every different tile of A and B; fp16 lies as bf16 does. Of C every box that results leave in."""
    shared: dict[tuple, int] = {}
    for each in specialisations():
        for letter, operand in (("A", each.a), ("B", each.b)):
            element = "bf16" if each.in_type == "fp16" else each.in_type
            key = (letter, element, operand.mn_major, operand.extent, operand.depth, operand.span_bytes)
            shared[key] = max(shared.get(key, 1), operand.shared_by)
    for element, (size, _) in gemm_sm90.OUTPUT_TYPES.items():
        for span in sorted({widest_span(n * size) for n in gemm_sm90.TILE_N}):
            shared["C", element, False, gemm_sm90.WARP_ROWS, span // size, span] = 1
    return [Case(*key, most) for key, most in sorted(shared.items())]


@pytest.fixture(scope="module")
def cases_h(cases: list[Case]) -> str:
    lines = [each.macro for each in cases]
    for n in gemm_sm90.TILE_N:
        for kind, depth, rest in (
            ("BF16BF16", 16, "SS<Major::K, Major::K>"),
            ("F16F16", 16, "SS<Major::K, Major::K>"),
            ("E4M3E4M3", 32, "SS_TN<>"),
        ):
            lines.append(f"ACCUMULATOR({n}, MMA_64x{n}x{depth}_F32{kind}_{rest})\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def cutlass(wheel: Callable[[str, str], Path]) -> Path:
    return wheel("nvidia-cutlass", "cutlass_library/source/include")


Answers = Callable[[str], NDArray[np.int64]]


@pytest.fixture(scope="module")
def cute(request: pytest.FixtureRequest, cases_h: str) -> Answers:
    """CuTe's answers: cute("maps") and so on; other cases than its file has are asked anew, and written."""
    return answers(request, "against_cute.cpp", cases_h, ANSWERS, ASKED)


def answers(request: pytest.FixtureRequest, source: str, cases_h: str, path: Path, asked: Sequence[str]) -> Answers:
    """Answers of a program of CuTe to these cases, stored by the text of the program."""
    texts = {source: (HERE / source).read_text(), "cases.h": cases_h, **SHIMS}
    pins = (request.config.rootpath / "constraints.txt").read_text()
    [pin] = re.findall(r"^nvidia-cutlass==.*$", pins, re.MULTILINE)
    question = hashlib.sha256(json.dumps([pin, ADDRESS, texts]).encode()).hexdigest()
    stored: dict[str, NDArray[np.generic]] = {}
    if path.exists():
        with lzma.open(path) as file:
            stored = dict(np.load(io.BytesIO(file.read())))
    if str(stored.get("asked", "")) != question:
        program = program_of_cute(request, source, texts)
        stored = {"asked": np.array(question)} | {name: numbers(program, name) for name in asked}
        plain = io.BytesIO()
        np.savez(plain, **stored)
        path.write_bytes(lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return stored.__getitem__


def program_of_cute(request: pytest.FixtureRequest, source: str, texts: Mapping[str, str]) -> Path:
    """The program that asks CuTe: minutes to compile."""
    compiled, cutlass, cuda_headers = map(request.getfixturevalue, ("compiled", "cutlass", "cuda_headers"))
    folders = ("-I", ".", "-isystem", str(cutlass), "-isystem", str(cuda_headers))
    options = ("-std=c++17", "-O0", "-w", f"-DMATRIX_ADDRESS={ADDRESS}", *folders)
    try:
        compiled("cute.o", {"cute.cpp": "#include <cute/tensor.hpp>\n", **SHIMS}, (*options, "-c", "cute.cpp"))
    except subprocess.CalledProcessError:
        pytest.skip("needs a C++ compiler that takes CuTe, and this one does not: g++ 12 does, CXX names another")
    return compiled("against_cute", texts, (*options, source))


def numbers(program: Path, *arguments: str, stdin: bytes = b"") -> NDArray[np.int64]:
    done = subprocess.run([program, *arguments], input=stdin, capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.int64)


@pytest.fixture(scope="module")
def ours(compiled: Callable[..., Path], cases_h: str) -> Callable[[Mapping[str, str]], Answers]:
    """Our headers' answers: ours({})("maps"), and with mistakes in tile.cuh: ours({"right": "wrong"})."""
    _, headers = gemm_sm90.sources()

    def with_mistakes(mistakes: Mapping[str, str]) -> Answers:
        texts = {
            "tile.cpp": (HERE / "against_cute_tile.cpp").read_text(),
            "cases.h": cases_h,
            "schedule.cuh": headers["schedule.cuh"],
            "tile.cuh": mistaken(headers["tile.cuh"], mistakes),
        }
        program = compiled("tile", texts, ("-std=c++17", "-O1", "-Wall", "-Wextra", "tile.cpp"))
        return lambda what: numbers(program, what)

    return with_mistakes


def mistaken(text: str, mistakes: Mapping[str, str]) -> str:
    """A header with some of its text replaced, each piece where it stands once."""
    for right, wrong in mistakes.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    return text


@pytest.mark.parametrize("table", ["maps", "accumulators"])
def test_every_element_of_every_tile_lies_and_every_thread_holds_the_sums_where_cute_has_them(cute, ours, table):
    theirs = cute(table)
    np.testing.assert_array_equal(ours({})(table), theirs)
    print(f"{theirs.size} {table} agree")


def leading_offset_is_unused(cases: list[Case]) -> NDArray[np.bool_]:
    """True for descriptors whose wgmma reads a single panel."""
    return np.concatenate(
        [np.full(each.extent // each.wgmma_rows * each.steps, each.one_panel) for each in cases if each.wgmma_rows]
    )


def test_every_descriptor_has_the_bits_that_cute_gives_it(cases, cute, ours):
    own, theirs, unused = ours({})("descriptors"), cute("descriptors"), leading_offset_is_unused(cases)
    assert own.size == theirs.size == unused.size
    # From panel to panel: where a wgmma reads only one CuTe leaves it zero, and ours has it all the same.
    assert not np.any(theirs[unused] & LEADING_OFFSET)
    np.testing.assert_array_equal(own[~unused], theirs[~unused])
    np.testing.assert_array_equal(own[unused] & ~LEADING_OFFSET, theirs[unused])
    print(f"{theirs.size} descriptors agree, {unused.sum()} of them but for an offset that nothing is read by")


@pytest.mark.parametrize(
    ("table", "right", "wrong"),
    [
        ("maps", "(offset >> 7 & (span / 16 - 1)) << 4", "(offset >> 7 & (span / 16 - 1)) << 5"),
        ("descriptors", "!mn_major ? 1 : plain ? eight_rows : panel", "!mn_major ? 1 : panel"),
        ("accumulators", "i / 4 * 8 + lane % 4 * 2", "i / 4 * 8 + lane % 4"),
    ],
)
def test_a_mistake_in_the_tiles_arithmetic_is_seen(cases, cute, ours, table, right, wrong):
    own, theirs = ours({right: wrong})(table), cute(table)
    if table == "descriptors":
        unused = leading_offset_is_unused(cases) * LEADING_OFFSET
        own, theirs = own & ~unused, theirs & ~unused
    print(f"{np.count_nonzero(own != theirs)} of {theirs.size} {table} differ")
    assert np.any(own != theirs)


def statement(text: str, named: Callable[[str], str]) -> str:
    """The first asm statement of a text, its operands by names; without blanks, and its predicate called p."""
    body = text.split("asm volatile(", 1)[1]
    written = ""
    for token in re.finditer(r'"((?:[^"\\]|\\.)*)"|:', body):
        if token[0] == ":":
            break
        written += token[1].replace("\\n", "\n")
    operands = re.findall(r'"[=+]?\w"\s*\((?:int32_t\()?([^()]+?)\)', body[token.end() :].split(";", 1)[0])
    for predicate in re.findall(r"\.reg \.pred (\w+);", written):
        written = re.sub(rf"\b{predicate}\b(?!:)", "p", written)
    written = re.sub(r"%(\d+)", lambda number: named(operands[int(number[1])]), written)
    return re.sub(r"\s", "", written)


def own_name(operand: str) -> str:
    """Our name of an operand: d[7 - 3] is d4."""
    register = re.fullmatch(r"(\w+)\[(\d+)(?: - (\d+))?\]", operand)
    if register:
        letter = {"sums": "d"}.get(register[1], register[1])
        return f"{letter}{int(register[2]) - int(register[3] or 0)}"
    return {"descriptor_a": "desc_a", "descriptor_b": "desc_b", "accumulate": "scale_D"}.get(
        operand, operand.replace("_", "")
    )


def cute_name(operand: str, tile: Specialisation | None = None) -> str:
    """CuTe's name, d004 by its number, sums that go in by those that come out, immediates by their values."""
    if tile is not None and operand in ("scaleA", "scaleB"):
        return "1"
    if tile is not None and operand in ("tnspA", "tnspB"):
        return str(int((tile.a if operand == "tnspA" else tile.b).mn_major))
    register = re.fullmatch(r"([a-d])(\d+)", operand)
    return f"{register[1].replace('c', 'd')}{int(register[2])}" if register else operand


Instance = tuple[Specialisation, str]


@pytest.fixture(scope="module")
def wgmma(compiled: Callable[..., Path]) -> Callable[[Mapping[str, str]], list[Instance]]:
    """Every wgmma that wgmma.cuh can be: wgmma({}) are instances and their text as the preprocessor leaves it."""
    _, headers = gemm_sm90.sources()
    instances = [
        gemm_sm90.in_layout(specialise(WGMMA_ROWS, n, stages=2, in_type=in_type), layout)
        for in_type in gemm_sm90.INPUT_TYPES
        for n in gemm_sm90.TILE_N
        for layout in (LAYOUTS if in_type != "e4m3" else LAYOUTS[:1])
    ]

    def with_mistakes(mistakes: Mapping[str, str]) -> list[Instance]:
        header = mistaken(headers["wgmma.cuh"], mistakes).replace("#pragma once\n", "")
        text = ""
        for one in instances:
            macros = [option[2:].split("=") for option in one.options() if option.startswith("-D")]
            text += "".join(f"#define {name} {value}\n" for name, value in macros)
            text += header + "@\n" + "".join(f"#undef {name}\n" for name, _ in macros)
        made = compiled("wgmma.ii", {"wgmma.cpp": text}, ("-E", "-P", "wgmma.cpp"))
        texts = made.read_text().split("@")[:-1]
        return [(one, statement(text, own_name)) for one, text in zip(instances, texts, strict=True)]

    return with_mistakes


@pytest.fixture(scope="module")
def wgmma_of_cute(cutlass: Path) -> Callable[[Specialisation], str]:
    """The text of the instruction that CuTe has for an instance."""
    files = [cutlass / "cute" / "arch" / name for name in ("mma_sm90_gmma.hpp", "mma_sm90_gmma_ext.hpp")]
    structures = dict(re.findall(r"struct (MMA_\w+)\s*\{(.*?)#else", "".join(map(Path.read_text, files)), re.DOTALL))

    def text(tile: Specialisation) -> str:
        kind, depth, rest = {"bf16": ("BF16", 16, "SS"), "fp16": ("F16", 16, "SS"), "e4m3": ("E4M3", 32, "SS_TN")}[
            tile.in_type
        ]
        name = f"MMA_64x{tile.n}x{depth}_F32{kind}{kind}_{rest}"
        return statement(structures[name], lambda operand: cute_name(operand, tile))

    return text


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("PYPERF_TEXT(LAYOUT_A_TRANSPOSED)", "PYPERF_TEXT(LAYOUT_B_TRANSPOSED)"),
        ("PYPERF_20) f(23)", "PYPERF_20) f(22)"),
    ],
)
def test_every_wgmma_is_the_instruction_that_cute_issues_and_a_mistake_is_seen(wgmma, wgmma_of_cute, right, wrong):
    instances = wgmma({right: wrong} if right else {})
    differ = [one.name for one, text in instances if text != wgmma_of_cute(one)]
    print(f"{len(differ)} of {len(instances)} texts of wgmma differ")
    assert bool(differ) is bool(right), differ


def mma_texts(header: str) -> list[str]:
    """The two mma instructions of ptx_sm80.cuh."""
    function = header[header.index("void mma_m16n8k16") :]
    return [statement(f"asm volatile({part}", own_name) for part in function.split("asm volatile(")[1:3]]


@pytest.mark.parametrize(
    ("right", "wrong", "agree"),
    [("", "", True), ("{%8, %9}", "{%9, %8}", False)],
    ids=["as it is", "B's registers exchanged"],
)
def test_the_two_mma_are_the_instructions_that_cute_issues(cutlass, right, wrong, agree):
    cute_header = (cutlass / "cute" / "arch" / "mma_sm80.hpp").read_text()
    theirs = []
    for kind in ("BF16BF16", "F16F16"):
        structure = cute_header.split(f"struct SM80_16x8x16_F32{kind}F32_TN", 1)[1]
        theirs.append(statement(structure, cute_name))
    _, headers = gemm_sm80.sources()
    own = mma_texts(headers["ptx_sm80.cuh"].replace(right, wrong) if right else headers["ptx_sm80.cuh"])
    assert (own == theirs) is agree


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("i / 2 % 2 == 0 ? group : group + 8", "i < 4 ? group : group + 8"),
        ("in_group * 2 + i % 2 + (i < 2 ? 0 : 8)][group]", "in_group * 2 + i % 2 + (i < 2 ? 8 : 0)][group]"),
        ("lane / 4 + (i < 2 ? 0 : 8), column", "lane / 4 + (i % 2 ? 8 : 0), column"),
    ],
    ids=["as it is", "A", "B", "C"],
)
def test_the_emulated_mma_has_fragments_where_cute_has_them(cute, compiled, right, wrong):
    emulated = (HERE / "emulated_ptx_sm80.cuh").read_text()
    texts = {
        "emulated_ptx_sm80.cuh": mistaken(emulated, {right: wrong} if right else {}),
        "fragments.cpp": (HERE / "against_cute_fragments.cpp").read_text(),
    }
    program = compiled("fragments", texts, ("-std=c++20", "-O1", "-Wall", "-Wextra", "fragments.cpp"))
    agree = numbers(program, stdin=cute("fragments").tobytes())
    print(f"{agree.sum()} of {agree.size} places of mma.m16n8k16 agree")
    assert (agree.sum() == agree.size) is not bool(right)


@pytest.fixture(scope="module")
def encoded() -> Iterator[Callable[[TensorMap], list[int]]]:
    """The driver's inputs to encode a tensor map: the numbers that its double notes."""
    native = pytest.importorskip("pyperf_suite._native", reason="the native extension is not built: `pip install -e .`")
    library = built() / "fake_libcuda.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYPERF_LIBCUDA", str(library))
        fake = ctypes.CDLL(str(library))
        fake.fake_log.restype = ctypes.c_char_p
        fake.fake_reset()
        context = native.cuda.Context(native.cuda.Driver())

        def numbers_of(tensor_map: TensorMap) -> list[int]:
            fake.fake_forget_log()
            native.cuda.tensor_map(context, **vars(tensor_map))
            return [int(number) for number in re.findall(r"\d+", fake.fake_log().decode())]

        yield numbers_of


@pytest.fixture(scope="module")
def tensor_maps(cases: list[Case]) -> list[TensorMap]:
    """The map of each case, and of each number of CTAs that load it together, of an instance that has it."""
    m, n, k = SIZES
    maps: dict[tuple, TensorMap] = {}
    for tile in specialisations():
        leading = (m if tile.a_transposed else k, k if tile.b_transposed else n, n)
        # All are at one address, as CuTe's are, and nothing is read there.
        a, b, _ = tile.tensor_maps(ADDRESS, ADDRESS, ADDRESS, leading, SIZES)
        element = "bf16" if tile.in_type == "fp16" else tile.in_type
        for letter, operand, tensor_map in (("A", tile.a, a), ("B", tile.b, b)):
            if tile.in_type != "fp16":
                key = (letter, element, operand.mn_major, operand.extent, operand.depth, operand.shared_by)
                maps[key] = tensor_map
    for out_type in gemm_sm90.OUTPUT_TYPES:
        for columns in gemm_sm90.TILE_N:
            one = specialise(WGMMA_ROWS, columns, stages=2, out_type=out_type)
            depth = one.store_span_bytes // one.out_bytes
            *_, c = one.tensor_maps(ADDRESS, ADDRESS, ADDRESS, (k, k, n), SIZES)
            maps["C", out_type, False, gemm_sm90.WARP_ROWS, depth, 1] = c
    return [
        maps[each.letter, each.element, each.mn_major, each.extent, each.depth, shared]
        for each in cases
        for shared in range(1, each.most_shared + 1)
    ]


def test_every_tensor_map_is_encoded_as_cute_encodes_it(cute, encoded, tensor_maps):
    own, theirs = np.array([encoded(each) for each in tensor_maps]), cute("tensor_maps").reshape(-1, 14)
    # L2's fetch around a miss is a hint: 256 bytes by ours, 128 by CuTe's, and either is right.
    assert set(own[:, PROMOTION]) == {3}
    assert set(theirs[:, PROMOTION]) == {2}
    np.testing.assert_array_equal(np.delete(own, PROMOTION, 1), np.delete(theirs, PROMOTION, 1))
    print(f"{len(own)} tensor maps agree, but for what L2 fetches around a miss: 256 bytes, CuTe's 128")
