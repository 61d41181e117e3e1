#!/usr/bin/env bash
# Runs every GPU benchmark in three calls of ten minutes: see bench/gpu/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
path=$PWD # `bench` itself
for folder in proto common kernels worker scheduler gateway license taco_llm demo tests; do
  path="$path:$PWD/$folder"
done
# Wheels in .whl/ (README.md) take precedence over installed packages.
if compgen -G ".whl/*.whl" >/dev/null; then
  "${PYTHON:-python3}" -m pip install --quiet --upgrade --no-index --no-deps \
    --target .whl/installed .whl/*.whl
  path="$PWD/.whl/installed:$path"
fi
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export FLASHINFER_CUDA_ARCH_LIST="${FLASHINFER_CUDA_ARCH_LIST:-9.0a}" # of Hopper
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m bench.gpu.run "$@"
