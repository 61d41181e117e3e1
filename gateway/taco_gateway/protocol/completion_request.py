"""Request schema of `POST /v1/completions`."""

from typing import Any

from pydantic import Field, field_validator, model_validator

from taco_gateway.protocol.generation_request import GenerationRequest
from taco_gateway.protocol.token_ids import TokenIds, is_token_ids
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import ALL_TOKENS

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 1024

Prompt = str | TokenIds


class CompletionRequest(GenerationRequest):
    prompt: Any = Field(description="list of strings, token ids or lists of token ids")
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=ALL_TOKENS)
    suffix: str | None = None

    @model_validator(mode="after")
    def _check_suffix(self) -> "CompletionRequest":
        if not self.suffix:
            return self
        if not all(isinstance(prompt, str) for prompt in self.prompts):
            raise InvalidParameterError("suffix needs a prompt that is text.", "suffix")
        for name in ("echo", "truncate_prompt_tokens"):
            if getattr(self, name):
                raise InvalidParameterError(f"suffix and {name} exclude each other.", name)
        return self

    @model_validator(mode="before")
    @classmethod
    def _imply_logprobs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("logprob_token_ids"):
            return {"logprobs": 0, **values}
        return values

    @field_validator("prompt")
    @classmethod
    def _split(cls, value: object) -> list[Prompt]:
        if prompts := split_prompts(value):
            return prompts
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of such lists"
        )

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts in order."""
        prompts: list[Prompt] = self.prompt
        return prompts

    @property
    def generates_no_tokens(self) -> bool:
        """`max_tokens=0`: the client wants only the prompt, with its log probabilities."""
        return self.asked_max_tokens == 0

    def sampling_values(self) -> dict[str, Any]:
        """Raises:
        InvalidParameterError: `max_tokens=0` without `echo`.
        """
        values = super().sampling_values()
        if self.generates_no_tokens and not self.echo:
            name = self.client_names().get("max_tokens", "max_tokens")
            raise InvalidParameterError(f"{name}=0 needs echo=true.", name)
        # The engine generates at least one token, which is dropped for `max_tokens=0`.
        values["max_tokens"] = (
            DEFAULT_MAX_TOKENS if self.asked_max_tokens is None else self.asked_max_tokens or 1
        )
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
            if self.echo:
                values.setdefault("prompt_logprobs", self.logprobs)
        return values


def split_prompts(value: object) -> list[Prompt]:
    """The prompts in `value`, in order; empty if it has none of the allowed forms."""
    if isinstance(value, str):
        return [value]
    if is_token_ids(value):
        return [value]
    if not isinstance(value, list) or not value:
        return []
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed, got {len(value)}")
    if all(isinstance(item, str) for item in value) or all(is_token_ids(item) for item in value):
        return value
    return []
