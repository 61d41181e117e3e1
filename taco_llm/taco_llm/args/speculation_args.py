"""The engine's arguments for speculative decoding: sources of draft tokens, and verification."""

import math
from dataclasses import dataclass
from typing import Literal

from taco_demo.locate import BUNDLED_HEADS, BUNDLED_MODELS
from taco_llm.args.draft_checkpoint import are_heads
from taco_llm.args.flags import DRAFTER, GATEWAY, WORKER, flag
from taco_llm.args.model_location import locate_model, suggesting
from taco_llm.args.scheduler_args import SchedulerArgs
from taco_proto.config import DEFAULT_FORCED_TOKENS, MAX_SPECULATIVE_TOKENS, SpeculationConfig
from taco_proto.errors import ArgumentError
from taco_worker.quant.registry import quantization_names

NGRAM = "[ngram]"

_WORKER = (WORKER,)

SpeculativeKind = Literal["ngram", "heads", "draft model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationArgs(SchedulerArgs):
    """Arguments of workers and draft workers.

    Raises:
        ConfigurationError: a value is out of range, or two values contradict each other.
    """

    lookahead_cache_config_dir: str | None = flag(
        "Directory that turns on the lookahead cache, which drafts tokens from earlier prompts and "
        "answers. It may contain lookahead_cache_config.json with the cache's options.",
        _WORKER,
        default=None,
        metavar="DIR",
    )
    ignore_prompt_for_lookahead_cache: bool = flag(
        "Build the lookahead cache from answers only. Use it for tasks whose answers do not repeat "
        "their prompts, such as translation.",
        _WORKER,
        default=False,
    )
    cpu_decoding_memory_utilization: float | None = flag(
        "Maximum fraction of the machine's memory for the lookahead cache. Default: cache_size in "
        "its configuration; without that, the smaller of 5,000,000 tokens and 0.15 of the memory.",
        _WORKER,
        default=None,
        parse=float,
        metavar="FRACTION",
    )
    download_dir: str | None = flag(
        "Directory for downloaded models. Default: the Hugging Face cache.",
        (GATEWAY, WORKER),
        default=None,
        metavar="DIR",
    )
    speculative_model: str | None = flag(
        "Source of draft tokens: a small model with the same vocabulary, which a draft worker runs "
        "on CPU cores; Medusa or EAGLE heads for MODEL; or [ngram], which looks up the last tokens "
        "earlier in the same text. Default: no speculation.",
        (WORKER, DRAFTER),
        default=None,
        metavar="MODEL",
    )
    cpu_draft_worker: bool = flag(
        "Start a draft worker for the speculative model on this machine. --speculative-model with "
        "a draft model does the same.",
        _WORKER,
        default=False,
        is_advanced=True,
    )
    speculative_model_quantization: str | None = flag(
        "Quantization of the draft model's weights: int8 halves the cost of a draft token, none "
        "keeps the checkpoint's format. Default: int8 with --draft-backend kernels if the "
        "checkpoint is not quantized, else none.",
        (DRAFTER,),
        default=None,
        choices=(*quantization_names(), "none"),
    )
    draft_backend: str = flag(
        "Library that computes the draft model: kernels (TACO's CPU kernels) or ipex (Intel's "
        "extension for PyTorch 2.8).",
        (DRAFTER,),
        default="kernels",
        choices=("kernels", "ipex"),
        is_advanced=True,
    )
    ngram_prompt_lookup_max: int | None = flag(
        "Maximum number of last tokens that [ngram] looks up. [ngram] needs this flag.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    ngram_prompt_lookup_min: int | None = flag(
        "Minimum number of last tokens that [ngram] looks up. Default: 1.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
        is_advanced=True,
    )
    spec_decoding_acceptance_method: str = flag(
        "How draft tokens are accepted. rejection_sampler gives exactly the tokens of plain "
        "decoding. typical_acceptance_sampler also accepts draft tokens that the model finds "
        "likely enough: faster at high temperatures, but the output distribution changes.",
        _WORKER,
        default="rejection_sampler",
        choices=("rejection_sampler", "typical_acceptance_sampler"),
    )
    typical_acceptance_sampler_posterior_threshold: float = flag(
        "Probability above which typical acceptance accepts every draft token.",
        _WORKER,
        default=0.09,
        parse=float,
        metavar="PROBABILITY",
        is_advanced=True,
    )
    typical_acceptance_sampler_posterior_alpha: float = flag(
        "Typical acceptance accepts draft tokens with a probability above this factor times "
        "exp(-entropy).",
        _WORKER,
        default=0.3,
        parse=float,
        metavar="FACTOR",
        is_advanced=True,
    )
    logprobs_during_spec_decoding: bool = flag(
        "Return log probabilities of answers to requests that ask for them. Turn it off to speed "
        "such requests up.",
        _WORKER,
        default=True,
        is_advanced=True,
        old_negations=("disable_logprobs_during_spec_decoding",),
    )
    max_forced_tokens: int = flag(
        "Maximum tokens that a step appends to a sequence at once where its grammar (structured "
        "output) allows no other text. 0 computes one token a step, as for other texts.",
        _WORKER,
        default=DEFAULT_FORCED_TOKENS,
        parse=int,
        metavar="TOKENS",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        SchedulerArgs.__post_init__(self)
        if self.cpu_draft_worker and self.speculative_model in (None, NGRAM):
            raise ArgumentError("cpu_draft_worker needs speculative_model, a draft model")
        utilization = self.cpu_decoding_memory_utilization
        if utilization is not None and not 0 < utilization <= 1:
            raise ArgumentError(
                f"cpu_decoding_memory_utilization must be above 0 and at most 1, got {utilization}"
            )
        for name in (
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
        ):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ArgumentError(f"{name} must be a number from 0 on, got {value}")
        if not 0 <= self.max_forced_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ArgumentError(
                f"max_forced_tokens must be an integer from 0 to {MAX_SPECULATIVE_TOKENS}, got "
                f"{self.max_forced_tokens}"
            )
        self._check_ngram()

    def _check_ngram(self) -> None:
        shortest, longest = self.ngram_prompt_lookup_min, self.ngram_prompt_lookup_max
        if self.speculative_model == NGRAM:
            if longest is None:
                raise ArgumentError(
                    "speculative_model [ngram] needs ngram_prompt_lookup_max, at least 1"
                )
            if not 1 <= (shortest or 1) <= longest:
                raise ArgumentError(
                    "ngram_prompt_lookup_min must be at least 1 and at most "
                    f"ngram_prompt_lookup_max, got {shortest} and {longest}"
                )
        elif longest is not None or shortest is not None:
            raise ArgumentError(
                "ngram_prompt_lookup_max and ngram_prompt_lookup_min need speculative_model [ngram]"
            )

    def speculation_config(self) -> SpeculationConfig | None:
        """The worker's configuration of speculative decoding; None if there is no drafter.

        Raises:
            ConfigurationError: the speculative model cannot be found, or the arguments ask for two
                drafters that both run on the worker.
        """
        kind = self.speculative_kind()
        has_lookahead = self.lookahead_cache_config_dir is not None
        if has_lookahead and kind in ("ngram", "heads"):
            raise ArgumentError(
                f"lookahead_cache_config_dir and speculative_model ({kind}) both draft on the "
                "worker: give one of them"
            )
        if kind is None and not has_lookahead and self.num_speculative_tokens is None:
            return None
        return SpeculationConfig(
            lookahead_config_dir=self.lookahead_cache_config_dir,
            lookahead_ignores_prompts=self.ignore_prompt_for_lookahead_cache,
            lookahead_memory_utilization=self.cpu_decoding_memory_utilization,
            ngram_max=self.ngram_prompt_lookup_max or 0,
            ngram_min=self.ngram_prompt_lookup_min or 1,
            heads=self._located() if kind == "heads" else None,
            download_dir=self.download_dir,
            num_speculative_tokens=self.num_speculative_tokens,
            acceptance_method=self.spec_decoding_acceptance_method,
            posterior_threshold=self.typical_acceptance_sampler_posterior_threshold,
            posterior_alpha=self.typical_acceptance_sampler_posterior_alpha,
            disable_logprobs=not self.logprobs_during_spec_decoding,
        )

    def speculative_kind(self) -> SpeculativeKind | None:
        """What `speculative_model` names: n-grams, heads or a draft model; None without it.

        Raises:
            ConfigurationError: it cannot be found or read.
        """
        if self.speculative_model is None:
            return None
        if self.speculative_model == NGRAM:
            return "ngram"
        with suggesting(self.speculative_model, (*BUNDLED_MODELS, *BUNDLED_HEADS, NGRAM)):
            return "heads" if are_heads(self._located(), self.download_dir) else "draft model"

    def draft_model(self) -> str | None:
        """Directory or hub id of the model that a draft worker runs; None without a draft model.

        Raises:
            ConfigurationError: the speculative model cannot be found or read.
        """
        return self._located() if self.speculative_kind() == "draft model" else None

    def _located(self) -> str:
        assert self.speculative_model is not None
        return locate_model(self.speculative_model, download_dir=self.download_dir)
