"""The worker's GPU parts run on the CPU here, their kernels in Triton's interpreter."""

from support import triton_interpreter

triton_interpreter.install()
