#!/usr/bin/env bash
# Measures a running server: latency at two request rates, as a table and as latency.png.
# Usage: examples/benchmark.sh [URL]      default: http://localhost:8000
set -euo pipefail
taco_llm=${TACO_LLM:-.venv/bin/taco_llm}

"$taco_llm" bench serve --base-url "${1:-http://localhost:8000}" \
  --random-input-len 64 --random-output-len 32 --ignore-eos \
  --num-prompts 20 --request-rate 4 inf --output-file latency.png
