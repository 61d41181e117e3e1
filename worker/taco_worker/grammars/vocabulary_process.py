"""Child process that writes the tokenizer.json of a checkpoint without one to standard output.

Its arguments are the directory and the mode of the tokenizer. A vocabulary file is untrusted: the
process has limits on CPU time and memory. It writes an error to standard error.
"""

import resource
import sys
from pathlib import Path
from typing import Any

from taco_common.tokenizer_files.added_tokens import AddedToken
from taco_common.tokenizer_files.convert import convert, dump, vocabulary_file
from taco_common.tokenizer_files.published_patterns import MARK, MARK_AT_START, UNMARKED_START
from taco_common.tokenizer_files.settings_files import read_added_ids, read_settings

MAX_MEMORY_BYTES = 4 * 2**30
MAX_CPU_SECONDS = 60


def converted(directory: Path, mode: str) -> bytes:
    """The content of a tokenizer.json in UTF-8.

    Raises:
        ValueError, OSError: there is no vocabulary file, or it cannot be converted.
    """
    file = vocabulary_file(directory, is_mistral=mode == "mistral")
    if file is None:
        raise ValueError("there is neither a tokenizer.json nor a file that can be converted")
    tokenizer, _ = convert(file, read_settings(directory), read_added_ids(directory))
    _remove_marks(tokenizer)
    _name_the_family(tokenizer)
    return dump(tokenizer)


def _remove_marks(tokenizer: dict[str, Any]) -> None:
    """Give user-defined symbols their own texts, and make ids without a token special.

    The converter puts `MARK` in front of both, so that encoding finds neither in a text. It leaves
    gaps in a vocabulary without scores, for which llguidance would count too few tokens.
    """
    added, model = tokenizer["added_tokens"], tokenizer["model"]
    symbols = {token["content"] for token in added}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {
            _unmarked(text) if text in symbols else text: i for text, i in model["vocab"].items()
        }
        known = set(model["vocab"].values())
        missing = (i for i in range(max(known, default=0)) if i not in known)
        gaps = [AddedToken(id=i, content=f"{MARK}{i}") for i in missing]
        model["vocab"] |= {gap.content: gap.id for gap in gaps}
    else:
        gaps = [
            AddedToken(id=i, content=text)
            for i, (text, _) in enumerate(model["vocab"])
            if text.startswith(MARK) and text not in symbols
        ]
        model["vocab"] = [
            (_unmarked(text) if text in symbols else text, score) for text, score in model["vocab"]
        ]
    added += [gap.entry() for gap in gaps]
    added.sort(key=lambda token: int(token["id"]))
    for token in added:
        if token["content"] in symbols:
            token["content"] = _unmarked(token["content"])


def _name_the_family(tokenizer: dict[str, Any]) -> None:
    """Write a SentencePiece tokenizer in the form that llguidance knows.

    It must read bytes from the tokens, and put no space in front of a text. Steps with marks would
    do the latter.
    """
    steps = (tokenizer.get("decoder") or {}).get("decoders")
    if steps is None:
        return
    if {"type": "ByteFallback"} not in steps:
        steps.insert(1, {"type": "ByteFallback"})
    marked = ({"Regex": UNMARKED_START}, {"Regex": MARK_AT_START})
    rules = tokenizer["normalizer"]
    rules["normalizers"] = [one for one in rules["normalizers"] if one.get("pattern") not in marked]
    tokenizer["decoder"]["decoders"] = [
        step for step in steps if step.get("pattern") != {"String": MARK}
    ]


def _unmarked(text: str) -> str:
    return text.removeprefix(MARK)


def main(directory: str, mode: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        content = converted(Path(directory), mode)
    except MemoryError:
        print("it needs too much memory", file=sys.stderr)
        return 1
    except (ValueError, OSError, TypeError, KeyError, AttributeError, RecursionError) as error:
        print(" ".join(str(error).split())[:300] or type(error).__name__, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
