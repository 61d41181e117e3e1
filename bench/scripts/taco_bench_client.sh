#!/usr/bin/env bash
# Measures the server of taco_bench_server.sh: bash taco_bench_client.sh taco_llm
# Arguments after the engine's name are passed to `taco_llm bench serve`.
set -euo pipefail
source "$(dirname "$0")/taco_bench_settings.sh"

length=$((output_len < tgt_max_len ? output_len : tgt_max_len))
if [[ -n $DATASET_PATH ]]; then
    prompts=(--dataset-path "$DATASET_PATH" --output-len "$length")
else
    echo "No dataset: prompts are random. DATASET_PATH names one." >&2
    prompts=(--random-output-len "$length")
fi

exec taco_llm bench serve --backend "$backend" --base-url "http://$host:$port" \
    --tokenizer "$TOKENIZER_PATH" "${prompts[@]}" --shared-prefix-len "$SYSTEM_PROMPT_LENGTH" \
    --num-prompts $((NUM_PROMPT_PRE_TGT * NUM_TGT)) --max-concurrency "$NUM_TGT" \
    --metadata "prefix_cache=$ENABLE_PREFIX_CACHE" "offload=$ENABLE_CACHE_OFFLOAD" \
    "hit=$ENABLE_HIT_CNT" "lookahead=$ENABLE_LOOKAHEAD" \
    --output-file "$RESULT_DIR/$backend.csv" \
    --output-file "$RESULT_DIR/${backend}_$(date +%Y%m%d_%H%M%S).json" "${@:2}"
