"""`pyperf_suite.planner.laws` gives seconds by default, and the whole answer for `explain=True`."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner import laws
from pyperf_suite.planner.laws.explained import Explained

ASKED = {
    "gemm_time": (4096, [1024, 4096], 4096),
    "attention_time": (1, 4096, 4096, [16, 32], 8, 128),
    "memory_bound_time": ([1e6, 1e9],),
    "collective_time": ("all_reduce", [1e6, 1e9], 8),
}


@pytest.mark.parametrize("name", ASKED)
def test_arrays_in_seconds_out_the_whole_answer_when_asked_and_an_unknown_gpu_refused(name):
    law = getattr(laws, name)
    seconds, whole = law("H100", *ASKED[name]), law("H100", *ASKED[name], explain=True)
    assert isinstance(whole, Explained)
    assert np.array_equal(seconds, whole.seconds)
    assert seconds.shape == (2,)
    assert 0 < seconds[0] < seconds[1] < 1
    with pytest.raises(UserError, match="H1000"):
        law("H1000", *ASKED[name])
