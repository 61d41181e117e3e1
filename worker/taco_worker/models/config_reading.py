"""Reads a model directory's configuration as a dictionary with Hugging Face's field names.

Sources are config.json, Mistral's params.json, and the overrides of `--hf-overrides`. Recipes see
one flat dictionary: the fields of a nested text model are moved to the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object
from taco_worker.models.mistral_format import PARAMS_FILE, hf_config_of
from taco_worker.models.text_defaults import set_by_whole_model, text_defaults

# Fields that hold a text model; llm_config is InternVL's.
_NESTED = ("text_config", "llm_config")
TIED = "tie_word_embeddings"


def config_file(model_dir: Path, config_format: str = "auto") -> Path:
    """The file of the configuration: config.json, or params.json for mistral.

    auto prefers config.json. The file may be missing.
    """
    files = {"hf": "config.json", "mistral": PARAMS_FILE}
    if config_format != "auto":
        return model_dir / files[config_format]
    has_params_only = not (model_dir / "config.json").is_file()
    has_params_only = has_params_only and (model_dir / PARAMS_FILE).is_file()
    return model_dir / files["mistral" if has_params_only else "hf"]


def read_hf_config(file: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `file`, with those of a nested text model at the top.

    Args:
        file: a config.json or a params.json.
        overrides: fields that replace those of the file; objects are merged.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read, or its text model is not an object.
    """
    fields = read_json_object(file)
    if file.name == PARAMS_FILE:
        fields = hf_config_of(fields, file)
    overrides = overrides or {}
    fields = merged(fields, overrides)
    if nested := next((name for name in _NESTED if name in fields), None):
        fields = _text_part(fields, nested, file)
        outer = {name: value for name, value in overrides.items() if name != nested}
        fields = merged(fields, outer)
    return fields


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with `overrides` in their place, object by object."""
    result = dict(fields)
    for name, value in overrides.items():
        current = result.get(name)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            value = merged(current, value)
        result[name] = value
    return result


def _text_part(fields: dict[str, Any], nested: str, file: Path) -> dict[str, Any]:
    """The fields of the text model of a model for text and images, which are those of `nested`.

    The architecture of the text model is its own, the one that its model type is named after
    (`gemma3_text` is Gemma3ForCausalLM), or that of the file; the first one with a recipe counts.
    tie_word_embeddings is null if both configs have it and differ: versions of transformers read
    either.
    """
    text = fields.pop(nested)
    if not isinstance(text, dict):
        raise ValueError(f"{file}: {nested} is not an object")
    architectures = list(text.get("architectures") or ())
    model_type = str(text.get("model_type") or "")
    if class_name := model_type.removesuffix("_text"):
        words = "".join(word[:1].upper() + word[1:] for word in class_name.split("_"))
        architectures.append(f"{words}ForCausalLM")
    architectures += fields.get("architectures") or ()
    fields = {**fields, **set_by_whole_model(fields.get("model_type"))}
    given = {name: value for name, value in text.items() if value is not None or name not in fields}
    if fields.get(TIED) is not None and given.get(TIED, fields[TIED]) != fields[TIED]:
        given[TIED] = None
    return {**fields, **text_defaults(model_type), **given, "architectures": architectures}
