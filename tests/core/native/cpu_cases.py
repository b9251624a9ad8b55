"""Builds cpu_cases.cpp and asks it for products and attentions, fixed ones and ones drawn from a seeded generator."""

import os
import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.core.native import test_attention, test_gemm

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
SANITIZED = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
LAYOUTS = ("0 0", "0 1", "1 0", "1 1")  # whether A, and whether B, is transposed
# A sanitizer that is preloaded into the tests must not get into the compiler or the emulator.
# Memory that is held to the end is no leak here: workers wait for work as long as the process lives.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
ENVIRONMENT["ASAN_OPTIONS"] = "detect_leaks=0"


def objects(folder: Path, compiler: str, options: Sequence[str], sources: Iterable[Path]) -> list[Path]:
    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        includes = [f"-I{CSRC}", f"-I{CSRC.parent / 'kernels' / 'cuda'}"]
        command = [compiler, "-std=c++17", *options, *includes, "-c", source, "-o", target]
        subprocess.run(command, check=True, env=ENVIRONMENT)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, sources))


def program(folder: Path, compiler: str, options: Sequence[str]) -> Path:
    parts = objects(folder, compiler, options, [HERE / "cpu_cases.cpp", *CSRC.glob("cpu/*.cpp")])
    subprocess.run([compiler, *options, *parts, "-o", folder / "cpu_cases", "-pthread"], check=True, env=ENVIRONMENT)
    return folder / "cpu_cases"


def answers(command: Sequence[str | Path], lines: Sequence[str]) -> list[str]:
    """One answer a line; what the program says before it is ended, by a sanitizer for one, is the failure."""
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, env=ENVIRONMENT)
    given = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[: len(given) + 1][-1]!r}: {done.stderr[-4000:]}"
    assert len(given) == len(lines)
    return given


def assert_right(command: Sequence[str | Path], lines: Sequence[str]) -> None:
    """Every result is as near to the exact one as test_gemm and test_attention want it."""
    wrong = []
    for line, answer in zip(lines, answers(command, lines), strict=True):
        kind, isa, dtype, out, *_ = line.split()
        limit = test_gemm.LIMIT[out] if kind == "product" else test_attention.limit_of(isa, dtype)
        outcome, _, worst = answer.partition(" ")
        if outcome != "worst" or not float(worst) <= limit:
            wrong.append(f"{line}: {answer}")
    assert not wrong, "\n".join(wrong)


def heights(isa: str, max_rows: int) -> Iterator[str]:
    """Products and attentions of every number of rows that a micro-kernel takes, and one more."""
    for rows in range(1, max_rows + 2):
        for dtype, outs in test_gemm.RESULTS.items():
            yield f"product {isa} {dtype} {outs[0]} 0 0 {rows} 5 7 {rows} 1 7 0 1 1 1 0 0 0 {rows}"
        for dtype in test_attention.LIMIT:
            yield f"attention {isa} {dtype} 0 1 1 1 {rows} 11 9 {rows} 1 1 {rows}"


def drawn_products(isa: str, rounds: int, max_size: int, cores: int = 1) -> Iterator[str]:
    """In each round every dtype, layout of storage and schedule; the rest is drawn: sizes from one, paddings, tiles."""
    draw = random.Random(f"products of {isa}")

    def size() -> int:
        return draw.choice((1, draw.randint(1, 17), draw.randint(1, max_size), draw.randint(1, max_size)))

    for _ in range(rounds):
        for dtype, outs in test_gemm.RESULTS.items():
            for layout in LAYOUTS:
                for schedule in range(len(test_gemm.SCHEDULES)):
                    m, n, k, tile_m, tile_k = (size() for _ in range(5))
                    splits = draw.randint(1, -(-k // tile_k)) if schedule == 2 else 1
                    tile = f"{tile_m} {draw.randint(1, 3)} {tile_k}"
                    if splits == 1 and draw.random() < 0.2:
                        tile = "0 0 0"
                    how = f"{schedule} {splits} {draw.randint(1, cores)} {draw.randint(1, 4)}"
                    padding = " ".join(str(draw.choice((0, draw.randint(1, 9), 300))) for _ in range(3))
                    types = f"{dtype} {draw.choice(outs)}"
                    yield f"product {isa} {types} {layout} {m} {n} {k} {tile} {how} {padding} {draw.randint(0, 99)}"


def drawn_attentions(isa: str, rounds: int, max_size: int, cores: int = 1) -> Iterator[str]:
    """In each round both dtypes, with and without the causal mask; the rest is drawn."""
    draw = random.Random(f"attentions of {isa}")
    for _ in range(rounds):
        for dtype in test_attention.LIMIT:
            for causal in (0, 1):
                kv_heads = draw.randint(1, 2)
                heads = kv_heads * draw.randint(1, 2)
                keys = draw.choice((1, draw.randint(1, 17), draw.randint(1, max_size)))
                queries = draw.randint(1, keys if causal else max_size)
                width = draw.choice((1, draw.randint(1, 17), draw.randint(1, 80)))
                blocks = draw.choice(("0 0", f"{draw.randint(1, max_size)} {draw.randint(1, 3)}"))
                sizes = f"{draw.randint(1, 2)} {heads} {kv_heads} {queries} {keys} {width}"
                how = f"{blocks} {draw.randint(1, cores)} {draw.randint(0, 99)}"
                yield f"attention {isa} {dtype} {causal} {sizes} {how}"
