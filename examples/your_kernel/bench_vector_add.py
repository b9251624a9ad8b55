"""A kernel in CUDA source text, which NVRTC compiles at its first launch: `pyperf-suite run bench_vector_add.py`."""

import torch  # noqa: F401 - so that inputs are made on the GPU

import pyperf_suite as suite

SOURCE = """extern "C" __global__ void add(float* out, const float* x, const float* y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) out[at] = x[at] + y[at];
}"""
add = suite.cuda(SOURCE, "add", grid=lambda _out, _x, _y, n: -(-n // 256), block=256)


@suite.kernel(n=1 << 24)
def vector_add(n):
    x, y = suite.randn(n), suite.randn(n)
    return suite.launch(add, suite.empty(n), x, y, n, reference=lambda _out, x, y, _n: x.double() + y, bytes=12 * n)
