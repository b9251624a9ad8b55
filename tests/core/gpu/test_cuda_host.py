import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pyperf_suite.hardware.devices import gpus
from pyperf_suite.measure.sampling import StopRule
from pyperf_suite.workloads.backends import CudaDevice
from tests.core.gpu.conftest import memory
from tests.records import measure

pytestmark = pytest.mark.gpu

ADD = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""

# Lasts for the time it is given, by the clock that the stopwatch does not use.
SPIN = """
extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
}
"""

# One thread copies the box at (x, y) to shared memory by TMA; all then write it out as it lies there. The barrier
# stands behind the box, which begins at the start of shared memory and so on the 1024 bytes that a swizzle counts from.
COPY_BOX = """
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

extern "C" __global__ void copy_box(const __grid_constant__ TensorMap map, int x, int y, float* out, int count) {
    extern __shared__ __align__(1024) float box[];
    const unsigned barrier = (unsigned)__cvta_generic_to_shared(box + count);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
        asm volatile("fence.proxy.async.shared::cta;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(count * 4));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];"
                     :: "r"((unsigned)__cvta_generic_to_shared(box)), "l"(&map), "r"(x), "r"(y), "r"(barrier)
                     : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier) : "memory");
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = box[i];
}
"""

# Each block writes its rank into the shared memory of the next block of its cluster, which reports it.
PASS_ROUND = """
extern "C" __global__ void pass_round(unsigned* out) {
    __shared__ unsigned received;
    unsigned rank, blocks, remote;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    const unsigned here = (unsigned)__cvta_generic_to_shared(&received);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(here), "r"((rank + 1) % blocks));
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(remote), "r"(rank) : "memory");
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    out[blockIdx.x] = received;
}
"""

FILL_SHARED = """
extern "C" __global__ void fill_shared(unsigned* out, unsigned words) {
    extern __shared__ unsigned shared[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = shared[words - 1];
}
"""

KERNELS = {"add": ADD, "spin": SPIN, "copy_box": COPY_BOX, "pass_round": PASS_ROUND, "fill_shared": FILL_SHARED}
NEEDS_SM_90 = {"copy_box", "pass_round"}


def kernel(device: CudaDevice, name: str) -> Any:
    """The kernel of that name from the sources above; a skip where the GPU has not what it needs."""
    if name in NEEDS_SM_90 and device.context.properties.compute_capability < (9, 0):
        pytest.skip(f"{name} needs a GPU of compute capability 9.0")
    if name in NEEDS_SM_90 and device.context.properties.name.startswith("Fake"):
        pytest.skip(f"{name} has PTX of its own, which the double of libcuda does not execute")
    return device.kernel(device.compile(f"{name}.cu", KERNELS[name], {}), name)


def test_the_device_is_the_one_the_plain_driver_describes(device):
    plain, properties = gpus()[0], device.context.properties
    assert (properties.name, properties.uuid) == (plain.name, plain.uuid)
    assert properties.compute_capability == plain.compute_capability
    assert properties.multiprocessors == plain.multiprocessors
    assert properties.memory_bytes == plain.memory_bytes
    free, total = device.context.memory_bytes()
    assert 0 < free <= total


@pytest.mark.parametrize("n", [1, 127, 128, 129, 100_003])
def test_vectors_add_up(device, n):
    a, b = np.random.default_rng(n).standard_normal((2, n), np.float32)
    out = memory(device, np.full(n, np.nan, np.float32))
    operands = [memory(device, a), memory(device, b), out]
    arguments = [*(np.uint64(operand.address) for operand in operands), np.int32(n)]
    device.native.Launch(kernel(device, "add"), (math.ceil(n / 128), 1, 1), (128, 1, 1), arguments).run()
    np.testing.assert_array_equal(np.frombuffer(out.read(), np.float32), a + b)


def test_the_driver_knows_the_sizes_of_parameters(device):
    add = kernel(device, "add")
    if not add.parameter_bytes:
        pytest.skip("this driver is older than CUDA 12.4")
    assert add.parameter_bytes == [8, 8, 8, 4]


def test_a_kernel_runs_with_all_the_shared_memory_a_block_can_have(device):
    out = memory(device, np.zeros(1, np.uint32))
    size = device.context.properties.shared_bytes_per_block
    arguments = [np.uint64(out.address), np.uint32(size // 4)]
    fill = kernel(device, "fill_shared")
    device.native.Launch(fill, (1, 1, 1), (256, 1, 1), arguments, dynamic_shared_bytes=size).run()
    assert np.frombuffer(out.read(), np.uint32)[0] == size // 4 - 1
    assert fill.max_active_blocks(256, size) == 1


def test_occupancy_is_what_threads_allow(device):
    properties = device.context.properties
    add = kernel(device, "add")
    assert add.max_active_blocks(1024) == properties.threads_per_multiprocessor // 1024
    assert 1 <= add.max_active_blocks(32) <= properties.blocks_per_multiprocessor


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_blocks_of_a_cluster_write_to_each_others_shared_memory(device, size):
    blocks = 4 * size
    out = memory(device, np.full(blocks, 99, np.uint32))
    ring = kernel(device, "pass_round")
    launch = device.native.Launch(ring, (blocks, 1, 1), (1, 1, 1), [np.uint64(out.address)], cluster=(size, 1, 1))
    launch.run()
    expected = [(block % size - 1) % size for block in range(blocks)]
    assert np.frombuffer(out.read(), np.uint32).tolist() == expected


def test_active_clusters_are_at_most_what_the_blocks_allow_and_shared_memory_lowers_them(device):
    properties, ring = device.context.properties, kernel(device, "pass_round")
    half_of_a_multiprocessor = properties.shared_bytes_per_multiprocessor // 2
    for size in (1, 2, 4):
        most = properties.multiprocessors * ring.max_active_blocks(128) // size
        assert 1 <= ring.max_active_clusters(128, size) <= most
        assert ring.max_active_clusters(128, size, half_of_a_multiprocessor) <= properties.multiprocessors // size


def copied_box(device: CudaDevice, matrix: np.ndarray, x: int, y: int, swizzle_bytes: int) -> np.ndarray:
    """The 8 × 32 box at row y, column x of an fp32 matrix, as TMA lays it in shared memory."""
    rows, columns = 8, 32
    source, out = memory(device, matrix), memory(device, np.full(rows * columns, np.nan, np.float32))
    tensor_map = device.native.tensor_map(
        device.context,
        source.address,
        "float32",
        shape=(matrix.shape[1], matrix.shape[0]),
        stride_bytes=matrix.strides[0],
        box=(columns, rows),
        swizzle_bytes=swizzle_bytes,
    )
    arguments = [tensor_map, np.int32(x), np.int32(y), np.uint64(out.address), np.int32(rows * columns)]
    copy = kernel(device, "copy_box")
    shared_bytes = 4 * rows * columns + 8
    device.native.Launch(copy, (1, 1, 1), (128, 1, 1), arguments, dynamic_shared_bytes=shared_bytes).run()
    return np.frombuffer(out.read(), np.float32).reshape(rows, columns)


def test_a_tensor_map_copies_its_box(device):
    matrix = np.arange(40 * 96, dtype=np.float32).reshape(40, 96)
    np.testing.assert_array_equal(copied_box(device, matrix, 64, 16, swizzle_bytes=0), matrix[16:24, 64:96])


def test_elements_beyond_the_matrix_are_read_as_zeros(device):
    matrix = 1 + np.arange(20 * 52, dtype=np.float32).reshape(20, 52)
    expected = np.zeros((8, 32), np.float32)
    expected[:4, :20] = matrix[16:, 32:]
    np.testing.assert_array_equal(copied_box(device, matrix, 32, 16, swizzle_bytes=0), expected)


def test_a_swizzle_of_128_bytes_permutes_chunks_of_16_by_the_row(device):
    matrix = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    chunks = matrix.reshape(8, 8, 4)
    expected = np.stack([chunks[row, np.arange(8) ^ row] for row in range(8)]).reshape(8, 32)
    np.testing.assert_array_equal(copied_box(device, matrix, 0, 0, swizzle_bytes=128), expected)


def spinning(device: CudaDevice, stream: int, nanoseconds: int) -> Any:
    """A launch that keeps one multiprocessor busy for that long."""
    launch = device.native.Launch(kernel(device, "spin"), (1, 1, 1), (1, 1, 1), [np.uint64(nanoseconds)])
    return lambda index: launch.run(stream)


@pytest.mark.parametrize("queueing", ["held", "graph", "open"])
@pytest.mark.parametrize("launches", [1, 10])
def test_events_see_what_a_kernel_that_lasts_a_known_time_takes(device, queueing, launches):
    stopwatch = device.stopwatch(queueing)
    seconds = stopwatch.time(spinning(device, stopwatch.stream, 200_000), 0, 20, launches)
    per_launch = np.median(seconds) / launches
    # The kernel's clock may step by a microsecond; what a launch costs in addition to the kernel is below twenty.
    assert 198e-6 < per_launch < 220e-6
    assert 0 < stopwatch.resolution_s < 20e-6


def test_the_clock_read_with_a_sample_is_one_a_gpu_can_have(device):
    stopwatch = device.stopwatch()
    spin = spinning(device, stopwatch.stream, 1_000_000)
    for _ in range(100):  # an idle GPU's clock rises for a second or two
        stopwatch.time(spin, 0, 20, 1)
        clocks = stopwatch.clocks_hz(20)
        assert all(2e8 < hz < 4e9 for hz in clocks)
        if max(clocks) < 1.2 * min(clocks):
            return
    pytest.fail(f"the clock never settled: the last 20 readings are {min(clocks):g} to {max(clocks):g} Hz")


@pytest.mark.parametrize("kernels", [4, 12, 100, 1])
def test_launches_of_many_kernels_are_counted_and_held_back_by_fewer(device, kernels):
    stopwatch = device.stopwatch(hold_limit_s=0.5)
    spin = spinning(device, stopwatch.stream, 10_000)
    [seconds] = stopwatch.time(lambda index: [spin(index) for _ in range(kernels)], 0, 1, 2000 // kernels)
    assert "held" in stopwatch.name
    assert 2000 * 9e-6 < seconds < 2000 * 30e-6


def test_a_launch_that_waits_for_a_held_stream_is_timed_without_one(device):
    stopwatch = device.stopwatch(hold_limit_s=0.2)
    spin = spinning(device, stopwatch.stream, 10_000)
    assert stopwatch.time(lambda index: (spin(index), device.context.synchronize()), 0, 1, 1)[0] > 9e-6
    assert "held" not in stopwatch.name
    another = device.stopwatch(hold_limit_s=0.2)
    assert another.time(spinning(device, another.stream, 10_000), 0, 1, 1)[0] > 9e-6


def test_the_sampling_loop_converges_on_a_kernel_that_lasts_a_known_time(device):
    stopwatch = device.stopwatch()
    measurement = measure(spinning(device, stopwatch.stream, 50_000), stopwatch, StopRule(time_cap_s=5))
    assert measurement.value == pytest.approx(50e-6, rel=0.2)
    assert not measurement.discarded


def test_more_memory_than_there_is_costs_nothing_but_the_asking(device):
    _, total = device.context.memory_bytes()
    with pytest.raises(device.native.OutOfMemory, match="GB are free"):
        device.native.DeviceMemory(device.context, 2 * total)
    assert memory(device, np.ones(4, np.float32)).read() == np.ones(4, np.float32).tobytes()


def test_machine_code_of_another_architecture_is_not_available(device):
    other = "sm_90a" if device.context.properties.compute_capability >= (10, 0) else "sm_100a"
    cubin = device.compile("add.cu", ADD, {}, architecture=other)
    with pytest.raises(device.native.NotAvailable):
        device.native.Module(device.context, cubin)


def test_a_kernel_that_leaves_its_memory_ends_the_process_it_was_in_and_no_other(device):
    program = f"""
import numpy as np
from pyperf_suite.workloads.backends import cuda_device
device = cuda_device(0)
add = device.kernel(device.compile("add.cu", {ADD!r}, {{}}), "add")
device.native.Launch(add, (1, 1, 1), (1, 1, 1), [np.uint64(0)] * 3 + [np.int32(1)]).run()
for attempt in range(2):
    try:
        device.context.synchronize()
    except device.native.LaunchFailed as reason:
        print(reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("CUDA_ERROR_ILLEGAL_ADDRESS (700") == 2, done.stdout + done.stderr
    device.context.synchronize()
