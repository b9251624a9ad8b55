"""Properties of every law of `pyperf_suite.planner.laws`: seconds or the whole answer, causes, intervals, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner import laws
from pyperf_suite.planner.laws.explained import Explained

USUAL: dict[str, dict[str, Any]] = {
    "gemm_time": {"gpu": "H200", "m": 1, "n": 1, "k": 1},
    "attention_time": {"gpu": "H200", "batch": 1, "seq_q": 64, "seq_k": 64, "heads": 32, "kv_heads": 8, "head_dim": 80},
    "memory_bound_time": {"gpu": "H200", "nbytes": 1e6},
    "collective_time": {"gpu": "H200", "op": "all_reduce", "nbytes": 1, "ranks": 2},
}
BATCHES = {
    "batch": np.array([1, 8, 4, 64]),
    "seq_q": np.array([8192, 1024, 4096, 128]),
    "seq_k": np.array([8192, 1024, 4096, 128]),
    "heads": np.array([32, 32, 40, 8]),
    "kv_heads": np.array([8, 32, 40, 1]),
    "head_dim": np.array([128, 64, 80, 256]),
}
GPUS = ("A100", "B200", "H100", "H200", "L40S", "RTX 4090", "GB200", "A40")
WAYS: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"backward": True}, {"dtype": "fp16"})


@pytest.mark.parametrize(
    ("name", "changed", "shape"),
    [
        ("gemm_time", {"m": 4096, "n": [1024, 4096], "k": 4096}, (2,)),
        ("memory_bound_time", {"nbytes": [1e6, 1e9]}, (2,)),
        ("memory_bound_time", {"gpu": "B300", "nbytes": np.ones((3, 1, 2))}, (3, 1, 2)),
        ("memory_bound_time", {"gpu": "RTX 4090"}, ()),
        ("collective_time", {"nbytes": [[1024.0], [2.0**20]], "ranks": [2, 4, 8, 64]}, (2, 4)),
        ("attention_time", {**BATCHES, "gpu": "V100", "dtype": "fp16"}, (4,)),
        *(("attention_time", {**BATCHES, "gpu": gpu, **way}, (4,)) for gpu, way in itertools.product(GPUS, WAYS)),
    ],
)
def test_arrays_give_seconds_whose_causes_add_up_and_which_lie_in_their_interval(name, changed, shape):
    law, arguments = getattr(laws, name), USUAL[name] | changed
    sizes = [arguments.pop(each) for each in USUAL[name]]
    explained = law(*sizes, **arguments, explain=True)
    assert isinstance(explained, Explained)
    assert np.array_equal(law(*sizes, **arguments), explained.seconds)
    assert explained.seconds.shape == shape
    assert np.all((explained.low < explained.seconds) & (explained.seconds < explained.high))
    assert np.all(explained.seconds > 0)
    np.testing.assert_allclose(sum(explained.parts.values()), explained.seconds, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        *((name, {"gpu": "H2000"}, "H2000.*did you mean") for name in USUAL),
        ("gemm_time", {"m": 0}, "m = 0"),
        ("gemm_time", {"k": float("nan")}, "k = nan"),
        ("gemm_time", {"m": [1, 2], "n": [1, 2, 3]}, "broadcast"),
        ("gemm_time", {"m": "wide"}, "have to be numbers"),
        ("gemm_time", {"layout": "XY"}, "XY"),
        ("gemm_time", {"mode": "turbo"}, "burst, sustained"),
        ("gemm_time", {"gpu": "A100", "dtype": "fp8"}, "no units for 'fp8'"),
        (
            "gemm_time",
            {"dtype": "fp8", "library": "cublas"},
            "Of cublas no gemm_fp8 was measured on H200 SXM: there are ",
        ),
        ("gemm_time", {"gpu": "MI300X", "library": "trtllm"}, "published of MI300X: there are those by pytorch"),
        *(
            (
                "gemm_time",
                {"gpu": "B200", "dtype": dtype},
                f"No table of products of '{dtype}' was published: there are bf",
            )
            for dtype in ("int8", "nvfp4")
        ),
        ("attention_time", {"heads": 0}, "heads = 0"),
        ("attention_time", {"head_dim": 1024}, "head_dim up to 512"),
        ("attention_time", {"kv_heads": 64}, "choose kv_heads that divide heads"),
        ("attention_time", {"seq_k": 16}, "more queries than keys"),
        ("attention_time", {"dtype": "int8"}, "ask for bf16, fp16"),
        ("attention_time", {"seq_q": 1, "seq_k": 8192}, "as in decode, are not priced"),
        ("attention_time", {"window": -1}, "window = -1: give a size of 0"),
        ("attention_time", {"window": 128, "causal": False}, "ask for causal or no window"),
        ("memory_bound_time", {"nbytes": -1}, "cannot move"),
        ("collective_time", {"op": "all_reduse"}, "Unknown collective 'all_reduse': choose from all_reduce"),
        ("collective_time", {"nbytes": -1}, "-1 bytes was requested"),
        ("collective_time", {"ranks": 0}, "among 0 ranks"),
        *(("collective_time", {"ranks": 16, "network": rate}, "carries nothing") for rate in (-1, 0)),
    ],
)
def test_what_cannot_be_asked_of_a_law_is_refused_in_one_sentence(name, changed, sentence):
    arguments = USUAL[name] | changed
    sizes = [arguments.pop(each) for each in USUAL[name]]
    with pytest.raises(UserError, match=sentence) as refused:
        getattr(laws, name)(*sizes, **arguments)
    assert "\n" not in str(refused.value)
