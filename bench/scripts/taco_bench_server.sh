#!/usr/bin/env bash
# Starts the server that taco_bench_client.sh measures: bash taco_bench_server.sh taco_llm
# Arguments after the engine's name are passed to the server.
set -euo pipefail
source "$(dirname "$0")/taco_bench_settings.sh"

arguments=(
    "$MODEL_PATH" --host "$host" --port "$port"
    --tensor-parallel-size "$tp" --max-num-batched-tokens "$max_num_batched_tokens"
    --max-num-seqs "$max_num_seqs"
)
if [[ $ENABLE_PREFIX_CACHE == true ]]; then
    arguments+=(--enable-prefix-caching)
else
    arguments+=(--no-enable-prefix-caching)
fi
if [[ $ENABLE_CACHE_OFFLOAD == true ]]; then
    arguments+=(--enable-prefix-cache-offload)
    [[ $ENABLE_HIT_CNT == true ]] && arguments+=(--apc-offload-enable-hit-cnt)
fi
[[ $ENABLE_LOOKAHEAD == true ]] && arguments+=(--lookahead-cache-config-dir ./)
if [[ -n $chat_template ]]; then
    beside=$(dirname "$0")/$chat_template
    [[ ! -f $chat_template && -f $beside ]] && chat_template=$beside
    arguments+=(--chat-template "$chat_template")
fi

exec "$backend" serve "${arguments[@]}" "${@:2}"
