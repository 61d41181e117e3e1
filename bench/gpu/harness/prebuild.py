"""Compiles flashinfer's kernels for the part `attention`; flashinfer's disk cache keeps them."""

from __future__ import annotations

import importlib.util

import torch

from bench.gpu.harness.context import Device
from bench.gpu.parts.attention_inputs import LLAMA_8B, Case, make_inputs
from bench.gpu.parts.attention_peers import PEERS


def main() -> None:
    if importlib.util.find_spec("flashinfer") is None or not torch.cuda.is_available():
        return
    device = Device(torch.device("cuda"))
    for case in (Case(2, 64), Case(2, 64, 64)):
        PEERS["flashinfer"](make_inputs(device, case, LLAMA_8B, num_layers=1)).calls[0]()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
