"""What plug-ins for `--tool-parser-plugin` and `--reasoning-parser-plugin` import.

See docs/tools.md.
"""

from taco_gateway.text.response.formats import (
    JsonCall,
    NamedCall,
    PythonCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
from taco_gateway.text.response.plugin_parsers import (
    AnswerPart,
    CallArguments,
    CallEnd,
    CallStart,
    ContentPart,
    ReasoningParser,
    ReasoningStep,
    ToolParser,
)

__all__ = [
    "AnswerPart",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "ContentPart",
    "JsonCall",
    "NamedCall",
    "PythonCall",
    "ReasoningFormat",
    "ReasoningParser",
    "ReasoningStep",
    "TaggedCall",
    "ToolFormat",
    "ToolParser",
]
