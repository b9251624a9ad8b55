"""Choice of the measured GPU that a law is read off: one rule for all laws, and its cost on a GPU left out."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import all_gpus, find_gpu
from pyperf_suite.planner import laws
from pyperf_suite.planner.laws.calibration import LIBRARIES, shipped_calibration
from pyperf_suite.planner.laws.transfers import have_same_kernels, nearest

MEASURED = ("A100 SXM", "B200 SXM", "H100 SXM", "H200 SXM", "L40S")


@pytest.mark.parametrize(
    ("gpu", "source"),
    [
        ("A30", "A100 SXM"),
        ("GH200", "H100 SXM"),
        ("B300", "B200 SXM"),
        ("RTX 3090", "L40S"),
        ("RTX 4090", "L40S"),
        ("RTX 5090", "L40S"),
        ("V100", "A100 SXM"),
        ("MI300X", "H200 SXM"),
        # GPUs that were measured, as if they had not been.
        ("A100 SXM", "H100 SXM"),
        ("L40S", "A100 SXM"),
        ("H100 SXM", "H200 SXM"),
        ("B200 SXM", "H200 SXM"),
    ],
)
def test_first_the_same_kernels_then_the_same_memory_then_the_nearest_rate(gpu, source):
    assert nearest(find_gpu(gpu), set(MEASURED) - {gpu}).name == source


def test_consumer_blackwell_has_not_the_kernels_of_servers():
    assert have_same_kernels(find_gpu("B300"), find_gpu("B200"))
    assert not have_same_kernels(find_gpu("RTX 5090"), find_gpu("B200"))
    assert not have_same_kernels(find_gpu("MI300X"), find_gpu("MI300X"))


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)
def test_no_kernel_is_faster_than_the_peak_and_what_was_read_off_says_so(gpu):
    batch, seq, heads, width = np.array(list(product((1, 16), (512, 32768), (8, 128), (64, 128, 256)))).T
    prices = {
        "attention_bf16": lambda _: laws.attention_time(
            gpu, batch, seq, seq, heads, heads, width, dtype="fp16", explain=True
        ),
        "gemm_bf16": lambda library: laws.gemm_time(
            gpu, seq, 4096, 4096, dtype="fp16", library=library, explain=True
        ),
    }  # fmt: skip
    for (law, price), library in product(prices.items(), LIBRARIES):
        with suppress(UserError):
            found = price(library)
            assert (found.seconds >= found.parts["ideal"] * (1 - 1e-12)).all(), (law, library)
            own = shipped_calibration(gpu.name)
            if law.startswith("gemm") and (own is None or not own.libraries(law)):
                assert np.all(found.extrapolated), (law, library)
