#!/usr/bin/env bash
# Guess: NVRTC folds the members of a template argument of class type (C++20) as it folds those of a constexpr object, so
# that `index / argument.columns` in a member function is a shift where columns is 32.
# What happens: up to NVRTC 13.1 it is. From 13.2 on the argument is emitted as a weak global variable (_ZTAX...), and a
# member function that is called on it reads it at run time: a load from global memory and a division. Nothing is said of
# it. The members of a `static constexpr` copy of the argument are folded by all. Our sm_80 GEMM, which had its tiles as
# such arguments, grew from 1,568 to 4,768 instructions and from 18 to 96 loads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/compile.py" <<'PYTHON'
import ctypes
import sys
from pathlib import Path

SOURCE = b"""
struct Tile {
    int rows, columns;
    __device__ constexpr int row(int index) const { return index / columns; }
};
template <Tile tile> struct Read {
    __device__ static int row(int index) { return tile.row(index); }
};
template <Tile argument> struct Copied {
    static constexpr Tile tile = argument;
    __device__ static int row(int index) { return tile.row(index); }
};
extern "C" __global__ void kernel(int* out) { out[threadIdx.x] = HOW<Tile{64, 32}>::row(threadIdx.x); }
"""
library_folder, how = Path(sys.argv[1]) / "nvidia/cu13/lib", sys.argv[2]
for companion in library_folder.glob("libnvrtc-builtins.so.*"):
    ctypes.CDLL(str(companion))
nvrtc = ctypes.CDLL(str(library_folder / "libnvrtc.so.13"))
program, size = ctypes.c_void_p(), ctypes.c_size_t()
options = [b"--gpu-architecture=compute_80", b"--std=c++20", f"-DHOW={how}".encode()]
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"kernel.cu", 0, None, None) == 0
assert nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
ptx = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetPTX(program, ptx) == 0
print(f"{how} {ptx.value.count(b'ld.global')} loads, {ptx.value.count(b'div.s32')} divisions")
PYTHON

found=""
for version in 13.0.88 13.1.115 13.2.51 13.5.37; do
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$version" "nvidia-cuda-nvrtc==$version" 2>/dev/null
  for how in Read Copied; do found+="NVRTC $version: $(python3 "$folder/compile.py" "$folder/$version" "$how")"$'\n'; done
done
printf '%s' "$found"

expected="NVRTC 13.0.88: Read 0 loads, 0 divisions
NVRTC 13.0.88: Copied 0 loads, 0 divisions
NVRTC 13.1.115: Read 0 loads, 0 divisions
NVRTC 13.1.115: Copied 0 loads, 0 divisions
NVRTC 13.2.51: Read 1 loads, 1 divisions
NVRTC 13.2.51: Copied 0 loads, 0 divisions
NVRTC 13.5.37: Read 1 loads, 1 divisions
NVRTC 13.5.37: Copied 0 loads, 0 divisions"
[[ $found == "$expected"$'\n' ]] || { echo "changed: see above" >&2; exit 1; }
echo "as described"
