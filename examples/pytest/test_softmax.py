"""A function and its reference, verified and timed by a test: pytest test_softmax.py."""

import numpy as np
import pytest


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def in_double(x):
    return softmax(x.astype(np.float64))


@pytest.mark.parametrize("n", [64, 512])
def test_softmax(suite, n):
    x = np.random.default_rng(0).standard_normal((32, n), dtype=np.float32)
    result = suite(softmax, x, reference=in_double, bytes=2 * x.nbytes)
    assert result.seconds < 0.02
