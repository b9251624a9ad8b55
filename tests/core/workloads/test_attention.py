"""Every implementation of attention is right on shapes that break things, and what cannot be is one clear sentence."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.attention import FLASH3_PACKAGE, AttentionParameters, reason_of_refusal
from pyperf_suite.workloads.attention.attention import ATTENTION
from pyperf_suite.workloads.workload import Kernel
from tests.core.workloads import test_outputs
from tests.core.workloads.test_outputs import ATTENTIONS as CASES

CPU = resolve("cpu")


def verified(implementation: str, parameters: AttentionParameters) -> Kernel:
    """The kernel that computed a case on two operand sets, both results right."""
    kernel: Kernel = test_outputs.verified(Case("attention", parameters, implementation)).kernel
    return kernel


def test_the_backend_that_torch_picks_is_recorded_and_so_is_how_it_was_asked() -> None:
    kernel = verified("sdpa_default", replace(CASES[1], dtype="float32"))
    assert kernel.path == "flash"
    assert kernel.details["mask"] == "boolean"
    assert kernel.details["gqa"] == "enable_gqa"
    assert verified("sdpa_math", replace(CASES[1], dtype="float32")).path == "math"
    assert verified("sdpa_default", CASES[4]).path == "flash", "a backend once forced does not bind the next case"


@pytest.mark.parametrize(("case", "mask"), [(1, "boolean"), (2, "none"), (3, "is_causal"), (4, "none")])
def test_causality_is_asked_for_as_is_causal_only_where_that_is_the_same(case: int, mask: str) -> None:
    assert verified("sdpa_flash", CASES[case]).details["mask"] == mask


def test_the_reason_of_a_refusal_is_what_torch_warned_of_under_the_backends_name() -> None:
    warned = [
        "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:985.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at sdp_utils.h:605.)",
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:987.)",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got float.\n(Triggered internally at 1.)",
        "CuDNN attention kernel not used because: (Triggered internally at sdp_utils.cpp:989.)",
        "cuDNN attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:583.)",
    ]
    error = "No available kernel. Aborting execution."
    assert (
        reason_of_refusal("flash", warned, error)
        == "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got float."
    )
    assert reason_of_refusal("cudnn", warned, error) == "cuDNN attention has been runtime disabled."
    assert reason_of_refusal("math", warned, error) == error
    assert reason_of_refusal("math", [], "") == "it gives no reason."


def test_a_backend_that_refuses_is_unsupported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def refuse(*operands: Any, **arguments: Any) -> None:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    with pytest.raises(
        Unsupported, match=r"^torch's flash backend of attention refuses this case: No available kernel"
    ):
        verified("sdpa_flash", CASES[1])


@pytest.mark.parametrize("implementation", ["sdpa_math", "two_gemm", "two_gemm_products"])
def test_a_score_matrix_larger_than_free_memory_is_refused_before_it_is_tried(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyperf_suite.hardware.memory.available_bytes", lambda: 10**6)
    with pytest.raises(Unsupported, match=r"score matrix of 262144 pairs .* 0\.001 GB are free"):
        verified(implementation, AttentionParameters(1, 4, 16, 256))


def test_work_counts_what_is_visible_and_each_operand_once() -> None:
    parameters = AttentionParameters(2, 4, 8, 3, 5, kv_heads=2, causal=True)
    work = ATTENTION.work(parameters)
    assert work.flop == 4 * 2 * 4 * 8 * (3 + 4 + 5)
    queries, keys = 2 * 4 * 3 * 8, 2 * 2 * 5 * 8
    assert work.bytes == 2 * (2 * queries + 2 * keys)
    backward = ATTENTION.work(replace(parameters, backward=True))
    assert backward.flop == work.flop * 5 // 2
    assert backward.bytes == 2 * (4 * queries + 4 * keys)


@pytest.mark.parametrize(
    ("answers", "outcome", "words"),
    [
        (lambda output: output, "ok", ""),
        (lambda output: (output, None), "ok", ""),  # as versions before 3.0.0b1
        (lambda output: 2 * output, "failed", "Wrong result"),
    ],
    ids=["newer", "older", "wrong"],
)
@pytest.mark.parametrize("changed", [{}, {"backward": True}, {"causal": True, "kv_heads": 2}], ids=str)
def test_flash_attention_3_is_called_as_its_package_takes_it(
    monkeypatch: pytest.MonkeyPatch, answers: Any, outcome: str, words: str, changed: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")

    def flash_attn_func(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        assert q.shape[1:3] == (32, 4)  # rows before heads
        rows = (each.transpose(1, 2) for each in (q, k, v))
        attend = torch.nn.functional.scaled_dot_product_attention
        return answers(attend(*rows, is_causal=causal, enable_gqa=True).transpose(1, 2))

    module = SimpleNamespace(flash_attn_func=flash_attn_func, __spec__=ModuleSpec(FLASH3_PACKAGE, None))
    monkeypatch.setitem(sys.modules, FLASH3_PACKAGE, module)
    case = Case("attention", AttentionParameters(1, 4, 64, 32, dtype="float32", **changed), "flash3")
    answer = measure_case(case, None, CPU)
    assert (answer["outcome"], words in answer.get("reason", "")) == (outcome, True)
