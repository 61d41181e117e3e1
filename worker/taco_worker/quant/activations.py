"""Checks `--quantized-activations` against the model and the other settings, without torch."""

from __future__ import annotations

from taco_worker.quant.registry import stored_as


def check_quantized_activations(
    activations: str, quantization: str | None, *, dtype: str, has_codes: bool
) -> None:
    """Check settings for a model on a CPU.

    Args:
        activations: auto, int8 or bfloat16.
        quantization: as `--quantization` has it.
        dtype: of the model: bfloat16 or float32.
        has_codes: the checkpoint is quantized, or is quantized to codes at load.

    Raises:
        ValueError: the settings contradict each other or the model.
    """
    if stored_as(quantization) == "int8":
        if activations == "bfloat16":
            raise ValueError(
                f"quantization {quantization} multiplies int8 activations: leave out "
                "quantized_activations bfloat16"
            )
        return
    if activations != "int8":
        return
    if not has_codes:
        raise ValueError(
            "quantized_activations int8 needs quantized weights, and the model has none: "
            "quantization int8 quantizes both"
        )
    if dtype != "bfloat16":
        raise ValueError(
            f"quantized_activations int8 needs dtype bfloat16: with {dtype} the weights are "
            "dequantized at load"
        )
