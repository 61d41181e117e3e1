#!/usr/bin/env bash
# Generates the checked-in stubs from the .proto files. tests/proto/test_stubs_fresh.py compares them.
#   proto/generate.sh [OUTPUT_DIR]
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
protoc=("${PYTHON:-python}" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out")
"${protoc[@]}" --grpc_python_out="$out" taco_proto/scheduler.proto taco_proto/inference.proto
"${protoc[@]}" taco_proto/registry.proto  # no services
