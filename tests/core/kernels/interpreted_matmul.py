"""A process in which Triton interprets: reads products as lines of JSON and answers how right each was.

Triton decides when it is imported whether it compiles or interprets, so the tests do this in a process of its own.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from pyperf_suite.kernels.matmul import Configuration, GroupedProduct, Product
from pyperf_suite.measure.verify import verify_product


def stored(shape: tuple[int, int], dtype: str, generator: torch.Generator, spread: int) -> torch.Tensor:
    """Normal values in rows that are padded with NaN to 16 elements, every `spread`-th of which is used.

    Integers use the range of int8, and their padding is the least of them.
    """
    padded = -(-shape[1] * spread // 16) * 16
    whole = poison((shape[0], padded), dtype)
    view = whole[:, : shape[1] * spread : spread]
    values = torch.randn(shape, generator=generator)
    view.copy_((32 * values).clamp(-127, 127).round() if dtype == "int8" else values)
    return view


def poison(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Values that no result may hold: NaN, and the least of integers."""
    element = getattr(torch, dtype)
    if element.is_floating_point:
        return torch.full(shape, torch.nan).to(element)
    return torch.full(shape, torch.iinfo(element).min, dtype=element)


def is_poison(values: torch.Tensor) -> bool:
    """True if nothing was written over `poison`."""
    return bool((values.isnan() if values.is_floating_point() else values == torch.iinfo(values.dtype).min).all())


def answer(shape: tuple[int, int, int], configuration: dict, spread: int = 1) -> dict:
    """Two launches of one product into outputs of NaN, compared with float64 and with each other."""
    requested = Configuration(**{**configuration, "tile": tuple(configuration["tile"])})
    m, n, k = shape
    generator = torch.Generator().manual_seed(m * n * k)
    dtype = "float32" if requested.dtype == "tfloat32" else requested.dtype
    a = stored((k, m) if requested.a_transposed else (m, k), dtype, generator, spread)
    b = stored((n, k) if requested.b_transposed else (k, n), dtype, generator, spread)
    logical_a = (a.t() if requested.a_transposed else a).float()
    logical_b = (b.t() if requested.b_transposed else b).float()
    product = Product(requested, m, n, k, "cpu")
    padded = poison((2, m, -(-n // 16) * 16), requested.out_dtype)
    for c in padded:
        product.bind(a, b, c[:, :n])()
    first, second = padded[:, :, :n].double()
    verification = verify_product(
        first.numpy(), logical_a.numpy(), logical_b.numpy(), requested.dtype, requested.out_dtype
    )
    reference = logical_a.double() @ logical_b.double()
    return {
        "message": "" if verification.passed else verification.message,
        "worst_relative": float(((first - reference).abs() / reference.abs()).max()),
        "same_again": torch.equal(first, second),
        "padding_untouched": is_poison(padded[:, :, n:]),
        "sums": summed_by_hand(product, logical_a, logical_b, padded[0, :, :n])
        if requested.policy == "split_k"
        else None,
    }


def answer_grouped(rows: list[int], n: int, k: int, workers: int, dtype: str) -> dict:
    """Products of several experts in one launch, each compared with float64."""
    generator = torch.Generator().manual_seed(sum(rows) * n * k)
    element = getattr(torch, dtype)
    a = torch.randn(sum(rows), k, generator=generator).to(element)
    b = torch.randn(len(rows), k, n, generator=generator).to(element)
    c = poison((sum(rows), n), "float32")  # the interpreter rounds to bfloat16 by cutting off
    GroupedProduct(Configuration((16, 32, 16), dtype, "float32", "NN"), rows, n, k, workers).bind(a, b, c)()
    messages, row = [], 0
    for expert, count in enumerate(rows):
        if count:
            found = verify_product(c[row : row + count], a[row : row + count], b[expert], dtype, "float32")
            messages += [] if found.passed else [f"expert {expert}: {found.message}"]
        row += count
    return {"message": " ".join(messages)}


def summed_by_hand(product: Product, a: torch.Tensor, b: torch.Tensor, output: torch.Tensor) -> bool:
    """True if split_k is, to the last bit, the fp32 sum of its slices' products in ascending k."""
    requested, schedule = product.configuration, product.schedule
    one_slice = Configuration(requested.tile, "float32", "float32", "NN")
    total = None
    for number in range(requested.splits):
        first = number * schedule.k_tiles // requested.splits * requested.tile[2]
        last = min((number + 1) * schedule.k_tiles // requested.splits * requested.tile[2], a.shape[1])
        part = torch.empty(a.shape[0], b.shape[1])
        slices = a[:, first:last].contiguous(), b[first:last].contiguous()
        Product(one_slice, a.shape[0], b.shape[1], last - first, "cpu").bind(*slices, part)()
        total = part if total is None else total + part
    return torch.equal(total, output)


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            requested = json.loads(line)
            outcome = answer_grouped(**requested) if "rows" in requested else answer(**requested)
        except Exception as error:
            outcome = {"message": f"{type(error).__name__}: {error}"}
        print(json.dumps(outcome), flush=True)
