"""Parses the URL of an OpenAI-compatible server, for the benchmark and the terminal clients."""

from urllib.parse import SplitResult, urlsplit

from taco_proto.errors import ConfigurationError


def parse_server_url(url: str) -> SplitResult:
    """Splits an http or https URL; the result's `hostname` and `port` are valid.

    Raises:
        ConfigurationError: `url` is not an http or https URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for an invalid port
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{url!r} is not an http or https URL")
    return parts
