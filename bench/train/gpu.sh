#!/usr/bin/env bash
# Checks and measures training on one GPU, in ten minutes: see docs/train/gpu.md. Ranks share the
# GPU; each has its own NCCL_HOSTID, so that NCCL takes them for ranks of different hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
path=$PWD # `bench` itself
for folder in taco_llm proto common train; do
  path="$path:$PWD/$folder"
done
export PYTHONUNBUFFERED=1
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"
"${PYTHON:-python3}" -m taco_train.native.build >/dev/null # the CPU's library, if it is not there
exec "${PYTHON:-python3}" -m bench.train.gpu "$@"
