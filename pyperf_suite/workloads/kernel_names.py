"""Parse the names of libraries' kernels: tile, stages, cluster, layout, instruction and element types.

A law about tiles can only be held against cuBLAS when the tile it chose is known, and its kernels' names say it. The
families, by example; parts in brackets may be absent:

| family     | example                                                                                      |
| ---------- | -------------------------------------------------------------------------------------------- |
| `cublas`   | `ampere_[bf16_]s16816gemm_bf16_128x256_[sliced1x2_]ldg8_[f2f_][stages_64x3_]nn`                 |
| `cutlass2` | `cutlass_80_tensorop_[bf16_]s16816gemm_[relu_]bf16_256x128_[32x3_]tn_align8`                    |
| `cutlass3` | `cutlass3x_sm90_tensorop_[s64x128x16]gemm_f16_f16_f32_void_f16_128x256x64_2x1x1_0_tnn_align8…`  |
| `xmma`     | `sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_[cgasize1x2x1_][stage4_]…`         |
| `nvjet`    | `nvjet_[sm90_]tst_128x256_64x4_2x1_[2cta_]v_bz_[coopA_][bias_][splitK_]TNT`                     |

Certain, because documented: CUTLASS's schemes (its library generator), tile rows × columns and "K of a stage × stages"
(`cublasLtMatmulTile_t` and `cublasLtMatmulStages_t` in cuBLAS's documentation), and the layout letters of a call.

Inferred from the launches that had the names: that `cublas` and `xmma` write types in CUTLASS's order (xmma: operand
and output, then operand as multiplied and accumulator); nvjet's fields, its letters t, h and s for bf16, fp16 and fp32
(operand, accumulator, output; five letters: A, B, C, accumulator, output), and that its first two layout letters are
those of the call.

Sizes stand as the name writes them, in the frame of a column-major library: for torch's row-major C[M,N], cuBLAS
computes the transposed product, so the first size lies along N. nvjet seems to do so where its last letter is T and to
have the first size along M where it is N: for few rows it is `64x8_…_TNT` or `8x64_…_TNN`. Hold both against the data.

FlashAttention-2's hold their template arguments, `Flash_fwd_kernel_traits<kHeadDim, kBlockM, kBlockN, kNWarps, …>`
(flash-attention's csrc/flash_attn/src/kernel_traits.h, which torch carries as its flash backend).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyperf_suite.laws.tiled_attention import Blocks

REDUCTION = "split_k_reduction"
LONGEST_NAME = 4096  # more than a templated kernel's; what is longer is cut

DTYPES = {
    "f16": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "fp32": "float32",
    "tf32": "tfloat32",
    "f64": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "s8": "int8",
    "s32": "int32",
}
LETTERS = {"h": "float16", "s": "float32", "d": "float64", "i": "int32", "c": "complex64", "z": "complex128"}
NVJET_LETTERS = {"h": "float16", "t": "bfloat16", "s": "float32"}
SHAPES = {"884": "8x8x4", "1688": "16x8x8", "16816": "16x8x16", "16832": "16x8x32", "161616": "16x16x16"}


@dataclass(frozen=True)
class KernelName:
    """Parts of a kernel's name; None for a part that the name lacks.

    `tile` is the output tile and `cluster` the CTAs that share operands, both in the name's order; `paired` that two
    CTAs form one instruction's operands. `layout` has the letters of the call: for a row-major C, those of
    `MatmulParameters.layout`. `instruction` is "fma", "mma", "wmma" or "wgmma" with its shape where the name has it.
    `split_k` is True where the name says that K is split among CTAs; no name denies it.
    """

    name: str
    family: str
    tile: tuple[int, ...] | None = None
    tile_k: int | None = None
    stages: int | None = None
    cluster: tuple[int, ...] | None = None
    paired: bool | None = None
    split_k: bool | None = None
    layout: str | None = None
    instruction: str | None = None
    operand: str | None = None
    accumulator: str | None = None
    output: str | None = None

    @property
    def message(self) -> dict[str, object]:
        return {field: value for field, value in vars(self).items() if value is not None}


def parse(name: str) -> KernelName | None:
    """Read a kernel's name as torch's profiler prints it, cut off ("…") or not; None for none of the families."""
    text = name[:LONGEST_NAME]
    for pattern, family, read in READERS:
        match = re.search(pattern, text, re.ASCII)
        if match is None:
            continue
        kernel = KernelName(match[0], family, split_k=True if family == REDUCTION else None)
        if read is None:
            return kernel
        words = match[0].split("_")
        if text[match.end() :].startswith(("...", "…")):
            words.pop()  # cut off: the last word may be half a word
        return read(kernel, words)
    return None


def product_kernel(names: Iterable[str]) -> KernelName | None:
    """The kernel that multiplies among those that one product launched; a reduction among them says that K is split."""
    kernels = [kernel for kernel in map(parse, names) if kernel is not None]
    products = [kernel for kernel in kernels if kernel.family != REDUCTION]
    if not products:
        return None
    return replace(products[0], split_k=True) if len(products) < len(kernels) else products[0]


def read_cublas_or_cutlass2(kernel: KernelName, words: list[str]) -> KernelName:
    """`[output] accumulator+shape+gemm [operand] tile [k x stages] layout`, other words between."""
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"[a-z]\d*(tf32)?gemm", word)), None)
    if at is None:
        return kernel
    letter, shape, converted = re.fullmatch(r"([a-z])(\d*)(tf32)?gemm", words[at]).groups()  # type: ignore[union-attr]
    before, after = words[:at], words[at + 1 :]
    accumulator = LETTERS.get(letter)
    pairs = [(i, sizes) for i, word in enumerate(after) if (sizes := sizes_of(word, 2))]
    tile = pairs[0][1] if pairs else None
    depth = pairs[1][1] if len(pairs) > 1 else (None, None)
    # Written only where they differ from the accumulator's; a name cut off before the tile may have lost them.
    operand = next((DTYPES[word] for word in after if word in DTYPES), accumulator if tile else None)
    if converted or (operand == "float32" and shape):
        operand = "tfloat32"
    if not shape:
        instruction = "fma"
    else:
        kind = "wmma" if "wmma" in before else "mma"
        instruction = f"{kind} {SHAPES[shape]}" if shape in SHAPES else kind
    return replace(
        kernel,
        tile=tile,
        tile_k=depth[0],
        stages=depth[1],
        layout=layout_among(after[pairs[0][0] :] if pairs else []),
        instruction=instruction,
        operand=operand,
        accumulator=accumulator,
        output=next((DTYPES[word] for word in before if word in DTYPES), accumulator),
    )


def read_cutlass3(kernel: KernelName, words: list[str]) -> KernelName:
    """`class [accumulator+shape]gemm A B accumulator C D tile cluster stages layout alignment …`."""
    at = next((i for i, word in enumerate(words) if word.endswith("gemm")), None)
    if at is None:
        return kernel
    types, after = words[at + 1 : at + 6], words[at + 6 :]
    triples = [sizes for word in after if (sizes := sizes_of(word, 3))]
    tile = triples[0] if triples else (None, None, None)
    cluster = triples[1] if len(triples) > 1 else (0, 0, 0)
    reported = next((int(word) for word in after if re.fullmatch(r"\d{1,2}", word)), 0)
    operand = DTYPES.get(types[0]) if types else None
    return replace(
        kernel,
        tile=None if tile[0] is None else tile[:2],
        tile_k=tile[2],
        stages=reported or None,  # 0: as many as fit
        cluster=cluster[:2] if cluster[0] and cluster[1] else None,  # 0: chosen at launch
        paired={"1sm": False, "2sm": True}.get(next((word for word in after if word in ("1sm", "2sm")), "")),
        layout=layout_among(after),
        instruction="fma" if "simt" in words[:at] else None,
        operand="tfloat32" if "tf32" in words[at] else operand,
        accumulator=DTYPES.get(types[2]) if len(types) > 2 else None,
        output=DTYPES.get(types[4]) if len(types) > 4 else None,
    )


def read_xmma(kernel: KernelName, words: list[str]) -> KernelName:
    """`A+output B+accumulator … layout tilesize… [cgasize…] [stage…] warpsize…|warpgroupsize… [tensor…] …`."""
    sizes = {
        label: tuple(map(int, shape.split("x")))
        for word in words
        for label, shape in re.findall(r"^(tilesize|cgasize|tensor|hgmma|stage)(\d{1,4}(?:x\d{1,4}x\d{1,4})?)$", word)
    }
    tile = sizes.get("tilesize", ())
    cluster = sizes.get("cgasize", ())
    shape = sizes.get("tensor") or sizes.get("hgmma") or ()
    types = [pair for word in words if (pair := dtype_pair(word))]
    kind = "mma" if shape else None
    if any(word.startswith("warpgroupsize") for word in words):
        kind = "wgmma"
    elif any(word.startswith("ffma") for word in words):
        kind = "fma"
    return replace(
        kernel,
        tile=tile[:2] if len(tile) == 3 else None,
        tile_k=tile[2] if len(tile) == 3 else None,
        stages=next(iter(sizes.get("stage", ())), None),
        cluster=cluster[:2] if len(cluster) == 3 else None,
        split_k=True if re.search(r"split_?k", kernel.name, re.IGNORECASE) else None,
        layout=layout_among(words),
        instruction=" ".join(filter(None, (kind, "x".join(map(str, shape))))) or None,
        operand=types[1][0] if len(types) == 2 else None,
        accumulator=types[1][1] if len(types) == 2 else None,
        output=types[0][1] if len(types) == 2 else None,
    )


def read_nvjet(kernel: KernelName, words: list[str]) -> KernelName:
    """`[architecture] types tile k-x-stages cluster [2cta] direction … layout`."""
    words = [word for word in words[1:] if not re.fullmatch(r"sm\d+", word)]
    types = words[0] if words and re.fullmatch(r"[a-z]{3}|[a-z]{5}", words[0]) else ""
    pairs: list[tuple[int, ...] | None] = [sizes_of(word, 2) for word in words[1:4]]
    # The three stand side by side; without the ones before it, a pair could be any of them.
    pairs += [None] * (3 - len(pairs))
    tile, depth, cluster = (pair if all(pairs[: i + 1]) else None for i, pair in enumerate(pairs))
    letters = words[-1] if words and re.fullmatch(r"[NT]{3}", words[-1]) else None
    same = len(types) == 3 or types[:1] == types[1:2]
    return replace(
        kernel,
        tile=tile,
        tile_k=depth[0] if depth else None,
        stages=depth[1] if depth else None,
        cluster=cluster,
        paired=True if "2cta" in words else None,
        split_k=True if "splitK" in words else None,
        layout=letters[:2] if letters else None,
        operand=NVJET_LETTERS.get(types[:1]) if same else None,
        accumulator=NVJET_LETTERS.get(types[-2:-1]),
        output=NVJET_LETTERS.get(types[-1:]),
    )


def sizes_of(word: str, count: int) -> tuple[int, ...] | None:
    """The numbers of a word such as 128x256, or None for another word."""
    if re.fullmatch("x".join([r"\d{1,4}"] * count), word, re.ASCII) is None:
        return None
    return tuple(map(int, word.split("x")))


def dtype_pair(word: str) -> tuple[str, str] | None:
    """The two element types of a word such as bf16f32."""
    one = "|".join(sorted(DTYPES, key=len, reverse=True))
    found = re.fullmatch(f"({one})({one})", word)
    return (DTYPES[found[1]], DTYPES[found[2]]) if found else None


def layout_among(words: list[str]) -> str | None:
    """The first word that is two or three of n and t: the layouts of A and B."""
    return next((word[:2].upper() for word in words if re.fullmatch(r"[nt]{2,3}", word)), None)


Reader = Callable[[KernelName, list[str]], KernelName]
READERS: tuple[tuple[str, str, Reader | None], ...] = (
    (r"splitKreduce_kernel", REDUCTION, None),
    (r"nvjet_\w+", "nvjet", read_nvjet),
    (r"sm\d+_xmma_gemm_\w+", "xmma", read_xmma),
    (r"cutlass3x_sm\d+_\w+", "cutlass3", read_cutlass3),
    (r"cutlass_\d+_\w*gemm\w*", "cutlass2", read_cublas_or_cutlass2),
    (r"(?:maxwell|volta|turing|ampere)_\w*gemm\w*", "cublas", read_cublas_or_cutlass2),
    (r"gemv\w*_kernel\w*|gemvx::kernel", "gemv", None),
    (r"gemmSN_\w+|gemmk1_kernel", "thin_gemm", None),
    (r"triton_(?:tem|mm|bmm)_\w+", "triton", None),
)
"""Patterns in order of precedence. A Triton kernel bears its Python function's name, which names no tile."""

_FORWARD_TRAITS = re.compile(
    r"flash_fwd_kernel_traits<" + ",".join([r"\s*(?:\(int\))?([1-9][0-9]{0,8})"] * 4), re.IGNORECASE
)


@dataclass(frozen=True)
class FlashKernel:
    """The bucket that head_dim was padded to, and the blocks of one program."""

    padded_head_dim: int
    blocks: Blocks


def flash_kernel(names: Iterable[str]) -> FlashKernel | None:
    """Parse the first forward kernel of FlashAttention-2 among these names; None where there is none."""
    for name in names:
        match = _FORWARD_TRAITS.search(name)
        if match is not None:
            head_dim, m, n, warps = (int(part) for part in match.groups())
            return FlashKernel(head_dim, Blocks(m, n, warps=warps))
    return None
