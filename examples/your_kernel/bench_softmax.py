import pyperf_suite as suite
from my_softmax import my_softmax


@suite.kernel(rows=4096, n=(1024, 4096, 16384), dtype=("bfloat16", "float32"))
def softmax(rows, n, dtype):
    x = suite.randn(rows, n, dtype=dtype)
    ways = {"triton": my_softmax, "torch": lambda x: x.softmax(-1)}
    return suite.launch(ways, x, reference=lambda x: x.double().softmax(-1), bytes=2 * x.nbytes)
