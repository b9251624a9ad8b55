"""Finding a driver and a device, and what each failure says; the device is a double of libcuda."""

import gc

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ELF = b"\x7fELF"  # all that the double asks of machine code


@pytest.mark.parametrize(
    ("capability", "architecture"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")]
)
def test_the_architecture_has_its_own_instructions_from_sm_90_on(cuda, fake, capability, architecture):
    fake.set(major=capability[0], minor=capability[1])
    assert cuda.Context(cuda.Driver()).architecture == architecture


@pytest.mark.parametrize(
    ("figures", "index", "words"),
    [
        ({"version": 11040}, 0, r"CUDA up to 11\.4 and the kernels need 12\.0: update the driver"),
        ({"major": 7, "minor": 0}, 0, r"GPU 0 \(Fake H200\) has compute capability 7\.0 .* need 8\.0"),
        ({}, -1, "GPU -1 .* the driver sees 1"),
        ({}, 1, "GPU 1 .* the driver sees 1"),
        ({"cuInit": 100}, 0, r"cuInit failed with CUDA_ERROR_NO_DEVICE \(100\).*nvidia-smi"),
    ],
    ids=str,
)
def test_a_driver_or_device_that_does_not_serve_says_what_is_needed(cuda, fake, figures, index, words):
    if "cuInit" in figures:
        fake.fail("cuInit", figures["cuInit"])
    else:
        fake.set(**figures)
    with pytest.raises(cuda.NotAvailable, match=words):
        cuda.Context(cuda.Driver(), index)
    assert fake.get("live") == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nowhere/libcuda.so.1", r"PYPERF_LIBCUDA=/nowhere/libcuda.so.1 cannot be opened \(.*\): correct it or unset"),
        ("libcuda.so.1", "PYPERF_LIBCUDA=libcuda.so.1 is no absolute path"),
        (np._core._multiarray_umath.__file__, "has no cuDriverGetVersion: it is too old or not what its name says"),
    ],
)
def test_an_override_that_is_no_driver_is_not_passed_over(cuda, monkeypatch, path, words):
    monkeypatch.setenv("PYPERF_LIBCUDA", path)
    with pytest.raises(cuda.NotAvailable, match=words):
        cuda.Driver()


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (1, "CudaError"),
        (2, "OutOfMemory"),
        (700, "LaunchFailed"),
        (719, "LaunchFailed"),
        (801, "NotAvailable"),
        (4711, "CudaError"),
    ],
)
def test_a_result_becomes_the_exception_that_says_what_to_do(cuda, context, fake, result, kind):
    fake.fail("cuCtxSynchronize", result)
    name = "an unknown result" if result == 4711 else ".*"
    with pytest.raises(cuda.CudaError, match=rf"cuCtxSynchronize failed with {name} \({result}") as raised:
        context.synchronize()
    assert type(raised.value) is getattr(cuda, kind)
    assert isinstance(raised.value, RuntimeError)


def test_after_a_kernel_crashed_every_call_says_that_the_process_must_go(cuda, context):
    memory = cuda.DeviceMemory(context, 16)
    crash = cuda.Launch(cuda.Kernel(cuda.Module(context, ELF), "crashes"), (1, 1, 1), (1, 1, 1), [])
    crash.run()
    for call in (context.synchronize, memory.read, lambda: cuda.DeviceMemory(context, 16), crash.run):
        with pytest.raises(cuda.LaunchFailed, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\).*start a new process"):
            call()


@pytest.mark.parametrize(
    ("count", "offset"), [(17, 0), (1, 16), (8, 12), (1, -1), (-1, 0), (2**62, 2**62), (0, -(2**63))]
)
def test_bytes_outside_an_allocation_are_refused(cuda, context, count, offset):
    with pytest.raises(ValueError, match=rf"{count} bytes from byte {offset} .* has 16"):
        cuda.DeviceMemory(context, 16).read(count, offset)


def test_more_memory_than_is_free_or_none_at_all_is_refused(cuda, context):
    with pytest.raises(cuda.OutOfMemory, match=r"2 GB of device memory .* 1 of 150\.11 GB are free"):
        cuda.DeviceMemory(context, 2_000_000_000)
    with pytest.raises(ValueError, match="at least 1"):
        cuda.DeviceMemory(context, 0)


def test_everything_is_given_back_and_the_callers_context_is_left_as_it_was(cuda, fake):
    context = cuda.Context(cuda.Driver())
    memory = cuda.DeviceMemory(context, 16)
    launch = cuda.Launch(cuda.Kernel(cuda.Module(context, ELF), "any"), (1, 1, 1), (1, 1, 1), [])
    launch.run()
    context.synchronize()
    fake.fail("cuCtxSynchronize", 1)
    with pytest.raises(cuda.CudaError):
        context.synchronize()
    assert fake.get("live") == 3  # the context, the memory, the module
    assert fake.get("context_depth") == 0
    del context, memory, launch
    gc.collect()
    assert fake.get("live") == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ("l2_cache_bytes = 38", "l2_cache_bytes = 39"),
        ("block_x, block_y, block_z", "block_z, block_y, block_x"),
        ("char bytes[64]", "char bytes[32]"),
        ("CUresult(void** host, std::size_t bytes, unsigned int flags)", "CUresult(void** host, std::size_t bytes)"),
        ("CUresult(float* milliseconds,", "CUresult(double* milliseconds,"),
    ],
    ids=["as it is", "an enumerator", "an order", "a size", "a parameter that is missing", "what is written to"],
)
def test_our_declarations_of_the_driver_agree_with_its_header_and_a_mistake_is_seen(
    cuda_headers, disagreements, right, wrong
):
    mistakes = {right: wrong} if right else {}
    said = disagreements("driver_api_check.cpp", "cuda/driver_api.h", cuda_headers, mistakes=mistakes)
    assert "static assertion failed" in said if right else not said
