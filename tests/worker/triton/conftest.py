"""The worker's GPU code on the CPU, with kernels in Triton's interpreter."""

from support import triton_interpreter

triton_interpreter.install()
