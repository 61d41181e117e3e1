#!/usr/bin/env bash
# Everything worth doing on a borrowed GPU, in ten minutes: bench/gpu/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for folder in bench proto kernels worker scheduler gateway license taco_llm demo tests; do
  path="${path:+$path:}$PWD/$folder"
done
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export FLASHINFER_CUDA_ARCH_LIST="${FLASHINFER_CUDA_ARCH_LIST:-9.0a}" # of Hopper
exec "${PYTHON:-python3}" -m gpu.run "$@"
