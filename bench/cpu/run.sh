#!/usr/bin/env bash
# Takes the figures of the CPU engine on this machine's instruction set, and writes the tables.
#
#   bench/cpu/run.sh [PEERS_DIRECTORY]     # default /tmp/peers, filled by bench/peers/install.sh
#   bench/cpu/run.sh --smoke               # a short run of each script without peers; nothing is saved
#
# Use a machine without other load. Each part saves results/NAME.ISA.json as soon as it is done, the
# most important parts first; a part that fails is named at the end and does not stop the others.
# With a checkpoint of qwen2-1.5b in the directory, that shape is compared too.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${PYTHON:-.venv/bin/python}"
failed=()

run() {
  echo "== bench.$*"
  local begun=$SECONDS
  "$python" -m "bench.$@" || failed+=("bench.$*")
  echo "== $((SECONDS - begun)) s"
}

finish() {
  ((${#failed[@]} == 0)) && exit
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
}

if [[ "${1:-}" == --smoke ]]; then
  run kernels.roofline
  run kernels.matmul --model 0.5b --matrix out --rows 1 128 --rounds 1
  run kernels.attention --model qwen2-0.5b --type bf16 --context 512 --rounds 1
  run kernels.attention --model qwen2-0.5b --type bf16 --batch 16 --context 512 --shared 256 \
    --without-torch --rounds 1
  run kernels.outliers --pairs 2 --rows 1
  run kernels.sampling --rounds 1
  run kernels.experts --rounds 1 --model olmoe --rows 1
  run worker.cpu_step --rounds 1
  run worker.adapter_steps --rounds 2
  run engine.host_work --steps 5 --batch-size 1
  run kernels.trace --decode 1 --steps 1 --out /dev/null
  run engine.speculation excerpts --drafter lookahead --batch-size 1 --pairs 2 --max-tokens 8
  finish
fi

peers="${1:-${PEERS_DIR:-/tmp/peers}}"
ours=(taco taco-int8)
best=(openvino openvino-int8 llama-cpp vllm)
compare() { run peers.compare --directory "$peers" "$@"; }

run kernels.roofline --save
run kernels.matmul --model 0.5b --type bf16 --type int8 --save
run kernels.attention --model qwen2-0.5b --type bf16 --type int8 --without-torch --save
compare --ours "${ours[@]}" --peer "${best[@]}" transformers --workload single long --pairs 6 \
  --save peers_latency
compare --ours "${ours[@]}" --peer openvino openvino-int8 vllm --workload batch mixed prefix \
  --pairs 4 --save peers_throughput
compare --ours taco taco-http --peer openvino --workload start memory --pairs 4 --save peers_start
if [[ -f "$peers/models/qwen2-1.5b/config.json" ]]; then
  compare --model qwen2-1.5b --ours "${ours[@]}" --peer openvino openvino-int8 vllm \
    --workload single long batch --pairs 4 --save peers_1.5b
  # Not all of them at once: their weights and vLLM's memory leave too little of 24 GiB.
  compare --model qwen2-1.5b --ours "${ours[@]}" --peer openvino openvino-int8 llama-cpp \
    --workload single --pairs 6 --save peers_1.5b_single
fi
run kernels.outliers --save
run worker.cpu_step --save
run worker.cpu_step --quantization int8 --save
run worker.adapter_steps --save
run engine.host_work --served --steps 200 --save
run kernels.trace --decode 1 8 32 --prefill 128 1024 --steps 9 --out /tmp/taco-trace.json
run engine.speculation replay --drafter lookahead --batch-size 1 8 --pairs 4 --save speculation_replay
run engine.speculation excerpts questions --drafter lookahead 'draft model' medusa eagle \
  --batch-size 1 8 32 --pairs 4 --save speculation_demo
run kernels.sampling --save
run kernels.experts --save
run kernels.codes --save
run kernels.lookahead --save
compare --ours taco-int8 taco-gptq taco-q8_0 taco-q4_k_m \
  --peer llama-cpp-q8_0 llama-cpp-q4_k_m openvino-int8 openvino-int4 vllm-gptq \
  --workload single long --pairs 4 --save peers_quantized
run report.tables
run pictures.peers_chart
finish
