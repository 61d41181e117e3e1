# What the three scripts share. Every setting may also come from the environment:
#   MODEL_PATH=/models/Llama-2-7b-hf ENABLE_PREFIX_CACHE=false bash taco_bench.sh taco_llm

backend=${1:-}  # what runs the server: taco_llm or vllm
if [[ $backend != taco_llm && $backend != vllm ]]; then
    echo "usage: bash $(basename "$0") taco_llm|vllm" >&2
    exit 2
fi

# model
MODEL_PATH=${MODEL_PATH:-demo}                # a directory, a hub id or a bundled model
TOKENIZER_PATH=${TOKENIZER_PATH:-$MODEL_PATH}
tp=${tp:-1}                                   # accelerators that one copy of the model takes
chat_template=${chat_template:-}              # such as ./llama.jinja; empty: the model's own

# server
host=${host:-127.0.0.1}
port=${port:-8007}
max_num_batched_tokens=${max_num_batched_tokens:-10240}  # tokens of a step, all sequences together
max_num_seqs=${max_num_seqs:-32}                         # sequences of a step
ENABLE_PREFIX_CACHE=${ENABLE_PREFIX_CACHE:-true}
ENABLE_CACHE_OFFLOAD=${ENABLE_CACHE_OFFLOAD:-true}
ENABLE_HIT_CNT=${ENABLE_HIT_CNT:-true}        # log the hits of the offloaded cache
ENABLE_LOOKAHEAD=${ENABLE_LOOKAHEAD:-false}

# requests
SHAREGPT=./ShareGPT_V3_unfiltered_cleaned_split.json
if [[ -z ${DATASET_PATH+set} ]]; then         # set to nothing: random prompts
    DATASET_PATH=$([[ -f $SHAREGPT ]] && echo "$SHAREGPT" || true)
fi
SYSTEM_PROMPT_LENGTH=${SYSTEM_PROMPT_LENGTH:-0}  # tokens that all prompts begin with
tgt_max_len=${tgt_max_len:-300}               # no request generates more
output_len=${output_len:-100}                 # tokens that each request generates
NUM_TGT=${NUM_TGT:-1}                         # requests under way at once
NUM_PROMPT_PRE_TGT=${NUM_PROMPT_PRE_TGT:-5}   # requests for each of them
RESULT_DIR=${RESULT_DIR:-./results}

# The command of this checkout, where none is on the path.
PATH=$PATH:$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv/bin
