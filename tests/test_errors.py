import warnings

import pytest

from pyperf_suite.errors import out_of_memory

CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)"
)
GPU = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError(CPU), "Out of memory: tried to allocate 4096 bytes"),
        (RuntimeError(GPU), "Out of memory: tried to allocate 2.00 GiB"),
        (MemoryError(), "Out of memory: MemoryError"),
        (MemoryError("Unable to allocate 8 GiB for an array"), "Out of memory: Unable to allocate 8 GiB for an array"),
        (RuntimeError("shape '[2]' is invalid for input of size 3"), ""),
        (None, ""),
    ],
)
def test_running_out_of_memory_is_known_by_what_allocators_say(error, message):
    assert out_of_memory(error) == message


def test_what_a_schedule_wraps_is_still_known():
    wrapped = RuntimeError("\n  Failed to run stage backward:\n  Input: …")
    wrapped.__cause__ = RuntimeError(GPU)
    assert out_of_memory(wrapped).startswith("Out of memory: tried to allocate")


@pytest.mark.parametrize(
    ("module", "words", "is_odd"),
    [
        ("torch.cuda", "Found GPU0 which is of cuda capability 10.3.", False),
        ("torch", "no CUDA", False),
        ("triton.runtime.autotuner", "deprecated", False),
        ("pyperf_suite.runner.measuring", "Resized\n(Triggered internally at ../aten/src/x.cpp:31.)", False),
        *((each, "odd", True) for each in ("pyperf_suite.runner.measuring", "tests.native.test_cuda", "torchlike")),
    ],
)
def test_a_warning_of_torch_fails_no_test_and_any_other_does(module, words, is_odd):
    with pytest.raises(UserWarning, match=words) if is_odd else warnings.catch_warnings(record=True) as caught:
        warnings.warn_explicit(words, UserWarning, "a.py", 1, module=module)
    assert is_odd or len(caught) == 1
