"""Measures one grammar with llguidance; `bench.grammar.libraries` starts it.

Standard input: {"tokenizer", "vocab_size", "kind", "value", "text", "rounds"}; output: one line of
JSON with "version", "load_ms", "compile_ms" and "mask_us", a time per token of the text.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

request = json.load(sys.stdin)
token_ids = Tokenizer.from_file(request["tokenizer"]).encode(request["text"]).ids
begun = time.perf_counter()
vocabulary = LLTokenizer(Path(request["tokenizer"]).read_text(), n_vocab=None, eos_token=[0])
load_ms = 1e3 * (time.perf_counter() - begun)
if request["kind"] == "regex":
    grammar = LLMatcher.grammar_from_regex(request["value"])
else:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(request["value"]))
compile_ms, mask_us = [], []
for _ in range(request["rounds"]):
    begun = time.perf_counter()
    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    compile_ms.append(1e3 * (time.perf_counter() - begun))
    if matcher.is_error():
        raise SystemExit(matcher.get_error())
    for token_id in token_ids:
        begun = time.perf_counter()
        matcher.compute_bitmask()
        mask_us.append(1e6 * (time.perf_counter() - begun))
        if not matcher.consume_token(token_id):
            raise SystemExit(f"token {token_id} is not allowed")
    if not matcher.is_accepting():
        raise SystemExit("the text is not complete")
found = {"load_ms": load_ms, "compile_ms": compile_ms, "mask_us": mask_us}
print(json.dumps({"version": version("llguidance"), **found}))
