import re

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.workloads.attention import AttentionParameters

pytestmark = pytest.mark.gpu

GPU = Device("cuda")
FUSED = ("triton", "sdpa_default", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn")
IMPLEMENTATIONS = (*FUSED, "sdpa_math", "two_gemm", "two_gemm_products")

# Square; grouped queries of a head_dim that no bucket has, more keys than queries; decode with one key head.
CASES = {
    "square": AttentionParameters(2, 8, 64, 512),
    "grouped": AttentionParameters(1, 8, 80, 200, 328, kv_heads=2),
    "decode": AttentionParameters(2, 8, 128, 1, 1000, kv_heads=1),
}


def measured(implementation: str, case: str, **changed: object) -> dict:
    parameters = AttentionParameters(**(vars(CASES[case]) | changed))
    return measure_case(Case("attention", parameters, implementation), QUICK.effort, GPU)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_implementation_is_right_or_says_why_it_does_not_take_the_case(implementation, case, causal, backward):
    answer = measured(implementation, case, causal=causal, backward=backward)
    ours_or_plain = implementation in ("triton", "sdpa_default", "sdpa_math", "two_gemm", "two_gemm_products")
    allowed = (
        ("ok",) if ours_or_plain or (implementation == "sdpa_flash" and case == "square") else ("ok", "unsupported")
    )
    assert answer["outcome"] in allowed, answer["reason"]
    if answer["outcome"] == "ok":
        assert answer["metrics"]["time"]["value"] > 0
    else:
        assert len(answer["reason"]) > len("torch's flash backend of attention refuses this case: ")


@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient", "math"])
def test_a_forced_backend_is_the_one_that_runs(backend):
    answer = measured(f"sdpa_{backend}", "square", causal=True)
    if answer["outcome"] == "unsupported":
        pytest.skip(answer["reason"])
    assert answer["kernel"]["path"] == backend
    assert answer["kernel"]["details"]["launched"]


@pytest.mark.parametrize(
    ("implementation", "changed", "words"),
    [
        ("sdpa_flash", {"dtype": "float32"}, "flash backend of attention refuses this case: Expected.*[Ff]loat"),
        ("sdpa_flash", {"head_dim": 288}, "288|256"),
        ("two_gemm", {"batch": 1, "heads": 16, "seq_q": 65536}, "score matrix"),
    ],
)
def test_what_an_implementation_does_not_have_is_unsupported_and_not_slow(implementation, changed, words):
    answer = measured(implementation, "square", **changed)
    assert answer["outcome"] == "unsupported"
    assert re.search(words, answer["reason"], re.DOTALL)


def test_the_products_of_two_gemms_report_their_tiles():
    answer = measured("two_gemm_products", "square", seq_q=1024)
    assert answer["outcome"] == "ok", answer["reason"]
    products = answer["kernel"]["details"]["products"]
    assert len(products) == 2
    assert all(product.get("tile") for product in products)
