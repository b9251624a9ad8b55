#!/bin/sh
# torch 2.13.0: FlopCounterMode counts a GRU and not an LSTM, a layer that trains and not the same layer in inference.
#
# One would guess that equal arithmetic is counted equally: an LSTM as 4/3 of a GRU, a matrix times a vector as the same
# product with a matrix of one column, attention as its two products, a layer in inference as its forward pass in
# training. On a CPU an LSTM, `matrix @ vector`, `addmv`, scaled_dot_product_attention and a TransformerEncoderLayer under
# inference_mode count 0, without a warning; a GRU, `matrix @ column`, `F.linear` of a vector and the layer that trains are
# counted. An MFU made from it is too low by what happens to be fused.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "torch==2.13.0" "numpy==2.4.6"
cat >"$folder/count.py" <<'PYTHON'
import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

matrix, vector = torch.ones(512, 512), torch.ones(512)
steps, heads, tokens = torch.ones(10, 2, 64), torch.ones(2, 4, 128, 64), torch.ones(2, 16, 64)
layer = torch.nn.TransformerEncoderLayer(64, 4, dim_feedforward=256, batch_first=True)
product, of_layer = 2 * 512 * 512, 2 * 2 * 16 * (4 * 64 * 64 + 2 * 64 * 256) + 4 * 2 * 16 * 16 * 64


def in_inference():
    layer.eval()
    with torch.inference_mode():
        layer(tokens)


cases = {
    "matrix @ column": (lambda: matrix @ vector[:, None], product, product),
    "matrix @ vector": (lambda: matrix @ vector, product, 0),
    "addmv": (lambda: torch.addmv(vector, matrix, vector), product, 0),
    "F.linear of a vector": (lambda: linear(vector, matrix), product, product),
    "GRU": (lambda: torch.nn.GRU(64, 64)(steps), 3 * 2 * 20 * 2 * 64 * 64, 3 * 2 * 20 * 2 * 64 * 64),
    "LSTM": (lambda: torch.nn.LSTM(64, 64)(steps), 4 * 2 * 20 * 2 * 64 * 64, 0),
    "attention": (lambda: scaled_dot_product_attention(heads, heads, heads), 4 * 2 * 4 * 128 * 128 * 64, 0),
    "encoder layer in training": (lambda: layer(tokens), of_layer, of_layer),
    "encoder layer in inference": (in_inference, of_layer, 0),
}
print("torch", torch.__version__)
right = True
for name, (call, arithmetic, expected) in cases.items():
    with FlopCounterMode(display=False) as counter:
        call()
    print(f"{name}: {counter.get_total_flops()} counted of {arithmetic}")
    right = right and counter.get_total_flops() == expected
raise SystemExit(not right)
PYTHON
"$folder/venv/bin/python" "$folder/count.py"
