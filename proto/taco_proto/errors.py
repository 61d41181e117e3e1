"""Exceptions that several services use."""


class InvalidParameterError(ValueError):
    """A request parameter is out of range or contradicts another.

    Attributes:
        param: name of the parameter, as clients write it; None: the request as a whole.
        code: OpenAI's machine-readable code, such as `context_length_exceeded`; None: none.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConfigurationError(Exception):
    """A service cannot start with this flag, file or environment; the text is one line."""


class ArgumentError(ConfigurationError):
    """An argument is wrong. The text names arguments as Python does, such as max_model_len."""
