from taco_kernels.cpu.library import CpuKernels


def test_every_instruction_set_makes_a_pool(cpu_kernels: CpuKernels) -> None:
    has_bf16 = "bf16" in cpu_kernels.isa or "amx" in cpu_kernels.isa

    assert cpu_kernels.bf16_operand_bytes == (2 if has_bf16 else 4)
