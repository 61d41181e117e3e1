"""Measures one grammar with xgrammar, as `drive_llguidance.py` does with llguidance."""

import json
import sys
import time
from importlib.metadata import version

import xgrammar
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

request = json.load(sys.stdin)
token_ids = Tokenizer.from_file(request["tokenizer"]).encode(request["text"]).ids
tokenizer = PreTrainedTokenizerFast(tokenizer_file=request["tokenizer"])
begun = time.perf_counter()
vocabulary = xgrammar.TokenizerInfo.from_huggingface(
    tokenizer, vocab_size=request["vocab_size"], stop_token_ids=[0]
)
load_ms = 1e3 * (time.perf_counter() - begun)
bits = xgrammar.allocate_token_bitmask(1, request["vocab_size"])
compile_ms, mask_us = [], []
for _ in range(request["rounds"]):
    compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)
    begun = time.perf_counter()
    if request["kind"] == "regex":
        compiled = compiler.compile_regex(request["value"])
    else:
        compiled = compiler.compile_json_schema(json.dumps(request["value"]))
    compile_ms.append(1e3 * (time.perf_counter() - begun))
    matcher = xgrammar.GrammarMatcher(compiled)
    for token_id in token_ids:
        begun = time.perf_counter()
        matcher.fill_next_token_bitmask(bits)
        mask_us.append(1e6 * (time.perf_counter() - begun))
        if not matcher.accept_token(token_id):
            raise SystemExit(f"token {token_id} is not allowed")
found = {"load_ms": load_ms, "compile_ms": compile_ms, "mask_us": mask_us}
print(json.dumps({"version": version("xgrammar"), **found}))
