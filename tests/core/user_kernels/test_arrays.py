"""How results are written, and in which arithmetic references are computed."""

from __future__ import annotations

import pytest

from pyperf_suite.user_kernels.arrays import UserCodeError, exact_arithmetic, write_result


def test_keys_that_are_one_word_as_text_are_refused(tmp_path):
    with pytest.raises(UserCodeError, match="a key that is a number and text"):
        write_result({1: 2.0, "1": 3.0}, str(tmp_path / "result"), exact_types=True, where=("", 0))
    write_result({1: 2.0, "2": 3.0}, str(tmp_path / "result"), exact_types=True, where=("", 0))


@pytest.mark.slow
@pytest.mark.parametrize("newer", [False, True])
def test_references_are_computed_in_full_precision_however_a_lower_one_was_set(newer):
    torch = pytest.importorskip("torch")
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    if not all(hasattr(each, "fp32_precision") for each in backends):
        pytest.skip("a torch without fp32_precision")
    try:
        if newer:
            torch.backends.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        before = [each.fp32_precision for each in backends]
        with exact_arithmetic():
            assert [each.fp32_precision for each in backends] == ["ieee", "ieee"]
        assert [each.fp32_precision for each in backends] == before
    finally:
        torch.backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
def test_references_are_computed_by_torchs_own_default_type():
    torch = pytest.importorskip("torch")
    try:
        torch.set_default_dtype(torch.float64)
        with exact_arithmetic():
            assert torch.zeros(1).dtype is torch.float32
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
