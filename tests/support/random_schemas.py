"""Random JSON schemas that bound every text, values of them, and values that are nearly theirs.

Names of properties are in alphabetical order everywhere: a grammar fixes the order of a schema's
properties, and JSON schema does not.
"""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("a", "b", "count", "name", "tags", "zip code", "é")
_CHARACTERS = 'ab z09_-/é日"\\\n\t{}[]:,'
_CONSTANTS: tuple[Any, ...] = ("x", 'yes, "no"', 7, -1, True, None, ["a", 1], {"b": []})


class RandomSchemas:
    """Schemas and values from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self, depth: int = 3) -> dict[str, Any]:
        """A schema; half of them name a part by `$ref`."""
        found = self._part(depth, may_refer=False)
        if found.get("type") == "object" and self._random.random() < 0.5:
            found["$defs"] = {"part": self._part(1, may_refer=False)}
            found["properties"]["zz"] = {"$ref": "#/$defs/part"}
        return found

    def _part(self, depth: int, *, may_refer: bool = True) -> dict[str, Any]:
        choose = self._random
        kinds = [self._string, self._pattern, self._integer, self._constants, self._simple]
        if depth > 0:
            kinds += [lambda: self._array(depth), lambda: self._object(depth)] * 3
            kinds += [lambda: {"anyOf": [self._part(depth - 1), self._part(depth - 1)]}]
        return choose.choice(kinds)()

    def _string(self) -> dict[str, Any]:
        least = self._random.choice([0, 0, 1, 3])
        return {"type": "string", "minLength": least, "maxLength": least + 4}

    def _pattern(self) -> dict[str, Any]:
        patterns = ("^[a-c]{1,4}$", "^\\d{2}-\\d{2}$", "^(yes|no|é)!?$", "^x?$")
        return {"type": "string", "pattern": self._random.choice(patterns)}

    def _integer(self) -> dict[str, Any]:
        low = self._random.choice([-250, -5, 0, 1, 90])
        return {"type": "integer", "minimum": low, "maximum": low + self._random.randrange(300)}

    def _constants(self) -> dict[str, Any]:
        values = self._random.sample(_CONSTANTS, self._random.randint(1, 4))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def _simple(self) -> dict[str, Any]:
        return {"type": self._random.choice(["boolean", "null", ["boolean", "null"]])}

    def _array(self, depth: int) -> dict[str, Any]:
        least = self._random.choice([0, 0, 1, 2])
        items = self._part(depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}

    def _object(self, depth: int) -> dict[str, Any]:
        names = sorted(self._random.sample(_NAMES, self._random.randint(0, 4)))
        return {
            "type": "object",
            "properties": {name: self._part(depth - 1) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
            "additionalProperties": False,
        }

    def value(self, schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
        """A value of a schema that this class has made."""
        root, choose = root or schema, self._random
        if "$ref" in schema:
            return self.value(root["$defs"]["part"], root)
        if "anyOf" in schema:
            return self.value(choose.choice(schema["anyOf"]), root)
        if "enum" in schema or "const" in schema:
            return choose.choice(schema.get("enum", [schema.get("const")]))
        if "pattern" in schema:
            return {
                "^[a-c]{1,4}$": "".join(choose.choices("abc", k=choose.randint(1, 4))),
                "^\\d{2}-\\d{2}$": f"{choose.randrange(100):02}-{choose.randrange(100):02}",
                "^(yes|no|é)!?$": choose.choice(["yes", "no!", "é"]),
                "^x?$": choose.choice(["", "x"]),
            }[schema["pattern"]]
        match schema["type"]:
            case "string":
                length = choose.randint(schema["minLength"], schema["maxLength"])
                return "".join(choose.choices(_CHARACTERS, k=length))
            case "integer":
                return choose.randint(schema["minimum"], schema["maximum"])
            case "boolean" | ["boolean", "null"]:
                return choose.random() < 0.5
            case "null":
                return None
            case "array":
                count = choose.randint(schema["minItems"], schema["maxItems"])
                return [self.value(schema["items"], root) for _ in range(count)]
        return {
            name: self.value(part, root)
            for name, part in schema["properties"].items()
            if name in schema["required"] or choose.random() < 0.5
        }

    def mutated(self, value: Any) -> Any:
        """The value with one change somewhere: often invalid, and sometimes still valid."""
        choose = self._random
        if isinstance(value, dict) and value and choose.random() < 0.7:
            name = choose.choice(list(value))
            if choose.random() < 0.3:
                return {key: part for key, part in value.items() if key != name}
            return {key: self.mutated(p) if key == name else p for key, p in value.items()}
        if isinstance(value, list) and value and choose.random() < 0.7:
            index = choose.randrange(len(value))
            if choose.random() < 0.3:
                return value[:index] + value[index + 1 :]
            return [self.mutated(p) if i == index else p for i, p in enumerate(value)]
        others: list[Any] = [None, True, 12, -3.5, "", "ab", [], {}, {"zzz": 1}, [[]]]
        match value:
            case bool() | None:
                pass
            case int():
                others += [value + 1, value - 1, value * 1000, value + 0.5]
            case str():
                others += [value + "a", value[1:], value * 3, value + '"', value + "日日日日日"]
            case list():
                others += [[*value, *value, *value], [*value, None]]
            case dict():
                others += [{**value, "zzz": 0}]
        return choose.choice(others)
