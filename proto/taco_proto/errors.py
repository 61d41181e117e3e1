"""Errors that every service understands."""


class InvalidParameterError(ValueError):
    """A request parameter is out of range or contradicts another.

    Attributes:
        param: name of the offending parameter, as clients write it; None when it is the request as
            a whole.
        code: OpenAI's machine-readable code, where there is one (`context_length_exceeded`).
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConfigurationError(Exception):
    """A service cannot start with this flag, file or environment; the text is one line."""
