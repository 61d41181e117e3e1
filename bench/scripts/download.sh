#!/usr/bin/env bash
# Downloads the data sets and the reference model of TACO's documents into the current folder:
#   bash download.sh                  all of them; the model takes about 13 GB
#   bash download.sh FILE [FILE...]   only these
# Complete files are skipped, and partial downloads are resumed.
set -euo pipefail

SOURCE_URL=${SOURCE_URL:-https://taco-1251783334.cos.ap-shanghai.myqcloud.com/llm}
declare -A paths=(
    [ShareGPT_V3_unfiltered_cleaned_split.json]=data
    [c4_sample.jsonl]=data
    [medical_dialogue.json]=data
    [github_sample.jsonl]=data
    [Llama-2-7b-hf.tar]=llama/llama-2
)

[[ $# -gt 0 ]] || set -- "${!paths[@]}"
for file in "$@"; do
    if [[ -z ${paths[$file]:-} ]]; then
        echo "download.sh: there is no file $file; there are ${!paths[*]}" >&2
        exit 2
    fi
done
for file in "$@"; do
    [[ -f $file ]] && continue
    echo "$file"
    curl --fail --location --no-progress-meter --continue-at - --output "$file.part" \
        "$SOURCE_URL/${paths[$file]}/$file"
    mv "$file.part" "$file"
done
