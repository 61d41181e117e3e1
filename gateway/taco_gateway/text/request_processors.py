"""Which logits processors a request uses, of those that the workers have loaded."""

import re
from collections.abc import Sequence

from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.logits_processors import EXTRA_ARGS, PARAM, LogitsProcessor
from taco_proto.requests import ModelInfo
from taco_proto.sampling_params import SamplingParams


def compiled_pattern(pattern: str | None) -> re.Pattern[str] | None:
    """The pattern of `--logits-processor-pattern`. Only names of loaded processors are matched.

    Raises:
        ConfigurationError: it is no regular expression.
    """
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"--logits-processor-pattern {pattern!r}: {error}") from None


def processors_of(
    params: SamplingParams, info: ModelInfo, pattern: re.Pattern[str] | None
) -> Sequence[LogitsProcessor | str]:
    """The processors of a request, in the order in which they run.

    Loaded processors come first, in the order of `--logits-processors`. Those that the pattern
    matches run only for requests that name them.

    Args:
        pattern: matches the beginning of a name; None: no processor may be named.

    Raises:
        InvalidParameterError: a named processor is not loaded or may not be named, or there are
            arguments and no loaded processor.
    """
    given = params.logits_processors or ()
    loaded = info.logits_processors
    if params.extra_args and not loaded:
        raise InvalidParameterError(
            f"{EXTRA_ARGS} are arguments of logits processors, and this server has loaded none.",
            EXTRA_ARGS,
        )
    if not given and not loaded:
        return ()
    by_name = {name for name in loaded if pattern is not None and pattern.match(name)}
    for name in given:
        if isinstance(name, str) and name not in by_name:
            raise InvalidParameterError(
                f"{PARAM}: {name[:100]!r} is not one of the processors that requests may name: "
                f"{', '.join(sorted(by_name)) or 'none'}.",
                PARAM,
            )
    return (*(name for name in loaded if name not in by_name), *dict.fromkeys(given))
