"""The API of a file of kernels, by itself: nothing is measured here."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import pyperf_suite as suite
from pyperf_suite.user_kernels import api


@pytest.fixture(autouse=True)
def as_without_torch(monkeypatch):
    """Arrays are numpy's here, whatever other tests have imported."""
    monkeypatch.setattr(api, "_library", "numpy")


def test_importing_the_api_imports_nothing_heavy():
    program = (
        "import sys, pyperf_suite as suite; suite.kernel, suite.launch\n"
        "print(sorted({'numpy', 'torch', 'scipy', 'rich', 'click', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_kernel_has_a_case_for_each_combination_of_its_axes():
    @suite.kernel(n=(2, 4), dtype="float32", deep=[True, False])
    def kernel(n, dtype, deep):
        return suite.launch(sorted, [n])

    assert len(list(kernel.cases())) == 4
    assert {"n": 4, "dtype": "float32", "deep": False} in list(kernel.cases())
    assert kernel(n=2, dtype="float32", deep=True).args == ([2],)
    assert kernel.file == __file__


def test_what_only_the_suites_own_kernels_may_say_is_refused_of_a_users():
    with pytest.raises(TypeError, match=r"takes axes by name: @suite.kernel\(n="):
        suite.kernel(lambda n: None)  # @suite.kernel without parentheses
    with pytest.raises(TypeError, match="takes axes by name"):
        suite.kernel(int, n=1)
    with pytest.raises(TypeError, match="takes a function"):
        suite.launch({"ours": SimpleNamespace(prepare=print)}, 1)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"m": 1}, "no argument for the axis m"),
        ({}, "has neither an axis nor a default"),
        ({"n": np.float32}, "holds"),
        ({"n": (np.dtype("float32"),)}, "numbers and words"),
        ({"n": ()}, "holds no value"),
        ({"n": {"quick": (), "full": 1}}, "holds no value"),
        ({"n": {"full": (1, 2)}}, "values for full: .* quick has to be there"),
        ({"n": {"quick": 1, "thorough": 2}}, "quick, standard, full"),
        ({"implementation": 1}, "the suite's own axis"),
    ],
)
def test_axes_that_cannot_be_are_refused_where_they_stand(axes, words):
    with pytest.raises(TypeError, match=words):

        @suite.kernel(**axes)
        def kernel(n):
            return suite.launch(sorted, [n])


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((3,), {}, "takes a function"),
        (({},), {}, "no implementation"),
        (({"a": sorted},), {"baseline": "b"}, "none of the implementations"),
        ((sorted, [1]), {"modifies": 1}, "no argument"),
        ((sorted, [1]), {"modifies": "x"}, "no argument"),
        ((sorted, [1]), {"random": True}, "takes check="),
        ((sorted, [1]), {"tolerance": 2}, "relative error"),
        ((sorted, [1]), {"bytes": -1}, "no amount"),
    ],
)
def test_a_launch_that_cannot_be_meant_is_refused(arguments, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        suite.launch(*arguments, **options)


def test_implementations_have_the_names_of_their_functions_and_the_last_is_the_baseline():
    assert list(suite.launch(sorted, [1]).functions) == ["sorted"]
    assert list(suite.launch(lambda x: x, 1).functions) == ["function"]
    assert suite.launch({"a": sorted, "b": sorted}, [1]).baseline == "b"


def test_arrays_are_of_the_shape_and_dtype_asked_for_and_follow_the_seed():
    made = []
    for _ in range(2):
        api.seed_everything(7)
        made.append((suite.randn(3, 4), suite.rand((5,), dtype="float64"), suite.randint(2, 5, 100, dtype="int32")))
    first, second = made
    assert [each.shape for each in first] == [(3, 4), (5,), (100,)]
    assert [each.dtype for each in first] == [np.float32, np.float64, np.int32]
    assert {2, 3, 4} == set(first[2].tolist())
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert not suite.zeros(4, dtype="float16").any()


ADD = """extern "C" __global__ void add(float* out, const float* x, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) out[at] = x[at] + 1;
}"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_cuda_source_text_compiles_without_a_gpu(architecture):
    kernel = suite.cuda(ADD, "add", grid=4, block=256)
    assert kernel.compile(architecture)[:4] == b"\x7fELF"
    assert kernel.file == __file__
