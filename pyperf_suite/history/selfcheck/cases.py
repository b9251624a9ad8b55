"""What a selfcheck compares with itself: a few launches of well under a millisecond, of every kind that series hold."""

from __future__ import annotations

from pyperf_suite.hardware.devices import Device
from pyperf_suite.history.pairs.arms import PairedCase
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

PROBE = "selfcheck"


def selfcheck_cases(device: Device) -> list[PairedCase]:
    """Eight on a CPU, each on one thread: the pairs' noise is then the machine's and not that of its scheduler."""
    cases = _cpu_cases() if device.kind == "cpu" else _cuda_cases()
    return [PairedCase.same(PROBE, case) for case in cases]


def _cpu_cases() -> list[Case]:
    one_thread = Schedule("data_parallel", 1)
    products = (
        MatmulParameters(384, 384, 384, one_thread),
        MatmulParameters(256, 256, 256, one_thread),
        MatmulParameters(257, 255, 509, one_thread),
        MatmulParameters(384, 384, 384, Schedule("stream_k", 1)),
        MatmulParameters(384, 384, 384, one_thread, dtype="bfloat16"),
        MatmulParameters(192, 768, 256, one_thread, layout="TN"),
    )
    attentions = (
        AttentionParameters(1, 4, 64, 256, dtype="float32"),
        AttentionParameters(1, 2, 128, 256, causal=True, dtype="float32"),
    )
    return [Case("matmul", product, "native") for product in products] + [
        Case("attention", attention, "native") for attention in attentions
    ]


def _cuda_cases() -> list[Case]:
    library = Schedule("library", 1)
    products = (
        MatmulParameters(1024, 1024, 1024, library, dtype="bfloat16", layout="TN"),
        MatmulParameters(2048, 2048, 2048, library, dtype="bfloat16", layout="TN"),
        MatmulParameters(4096, 4096, 1024, library, dtype="bfloat16", layout="NN"),
        MatmulParameters(2000, 2000, 2000, library, dtype="bfloat16", layout="TN"),
    )
    return [Case("matmul", product, "cublas") for product in products]
