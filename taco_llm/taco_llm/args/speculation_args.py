"""The engine's arguments for speculative decoding: who drafts, and how drafts are verified."""

import math
from dataclasses import dataclass
from typing import Literal

from taco_llm.args.draft_checkpoint import are_heads
from taco_llm.args.flags import DRAFTER, WORKER, flag
from taco_llm.args.model_location import locate_model
from taco_llm.args.scheduler_args import SchedulerArgs
from taco_proto.config import SpeculationConfig
from taco_proto.errors import ConfigurationError

NGRAM = "[ngram]"

_WORKER = (WORKER,)

SpeculativeKind = Literal["ngram", "heads", "draft model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationArgs(SchedulerArgs):
    """Arguments of workers and draft workers.

    Raises:
        ConfigurationError: a value is out of range or contradicts another.
    """

    lookahead_cache_config_dir: str | None = flag(
        "Turn on the lookahead cache, which drafts from earlier prompts and answers. The "
        "directory may contain lookahead_cache_config.json with its options.",
        _WORKER,
        default=None,
        metavar="DIR",
    )
    ignore_prompt_for_lookahead_cache: bool = flag(
        "Build the lookahead cache from answers only, for tasks such as translation whose answers "
        "repeat nothing of their prompts.",
        _WORKER,
        default=False,
    )
    cpu_decoding_memory_utilization: float | None = flag(
        "Maximum share of the machine's memory for the lookahead cache. By default the cache_size "
        "of its configuration applies; if that is not set either, 5,000,000 tokens or 0.15 of the "
        "memory, whichever is less.",
        _WORKER,
        default=None,
        parse=float,
        metavar="SHARE",
    )
    speculative_model: str | None = flag(
        "What drafts tokens: a small model with the same vocabulary, which a draft worker runs on "
        "CPU cores; Medusa or EAGLE heads of the model; or [ngram], which finds the last tokens "
        "earlier in the same text.",
        (WORKER, DRAFTER),
        default=None,
        metavar="MODEL",
    )
    cpu_draft_worker: bool = flag(
        "Start a draft worker for the speculative model on this machine. --speculative-model with "
        "a draft model does the same.",
        _WORKER,
        default=False,
    )
    speculative_model_quantization: str | None = flag(
        "Number format of the draft model's weights: int8 (the default) halves the cost of a "
        "draft token, none keeps the checkpoint's format.",
        (DRAFTER,),
        default=None,
        choices=("int8", "none"),
    )
    draft_backend: str = flag(
        "Library that computes the draft model: kernels are TACO's CPU kernels, ipex is Intel's "
        "extension for PyTorch 2.8.",
        (DRAFTER,),
        default="kernels",
        choices=("kernels", "ipex"),
    )
    ngram_prompt_lookup_max: int | None = flag(
        "Maximum number of tokens that [ngram] looks for.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    ngram_prompt_lookup_min: int | None = flag(
        "Minimum number of tokens that [ngram] looks for. Default: 1.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    spec_decoding_acceptance_method: str = flag(
        "How drafts are accepted. rejection_sampler gives exactly the tokens of plain decoding. "
        "typical_acceptance_sampler also accepts drafts that the model finds likely enough: "
        "faster at high temperatures, but no longer the model's own distribution.",
        _WORKER,
        default="rejection_sampler",
        choices=("rejection_sampler", "typical_acceptance_sampler"),
    )
    typical_acceptance_sampler_posterior_threshold: float = flag(
        "Probability above which typical acceptance accepts every draft.",
        _WORKER,
        default=0.09,
        parse=float,
        metavar="SHARE",
    )
    typical_acceptance_sampler_posterior_alpha: float = flag(
        "Factor of typical acceptance, which accepts drafts with a probability above this factor "
        "times exp(-entropy).",
        _WORKER,
        default=0.3,
        parse=float,
        metavar="FACTOR",
    )
    disable_logprobs_during_spec_decoding: bool = flag(
        "Return no log probabilities of answers, also where a request asks for them. Such "
        "requests become faster.",
        _WORKER,
        default=False,
    )

    def __post_init__(self) -> None:
        SchedulerArgs.__post_init__(self)
        if self.cpu_draft_worker and self.speculative_model in (None, NGRAM):
            raise ConfigurationError("cpu_draft_worker needs a speculative_model to run")
        utilization = self.cpu_decoding_memory_utilization
        if utilization is not None and not 0 < utilization <= 1:
            raise ConfigurationError(
                f"cpu_decoding_memory_utilization must be above 0 and at most 1, got {utilization}"
            )
        for name in (
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
        ):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} must be a number from 0 on, got {value}")
        self._check_ngram()

    def _check_ngram(self) -> None:
        shortest, longest = self.ngram_prompt_lookup_min, self.ngram_prompt_lookup_max
        if self.speculative_model == NGRAM:
            if longest is None:
                raise ConfigurationError("[ngram] needs ngram_prompt_lookup_max")
            if not 1 <= (shortest or 1) <= longest:
                raise ConfigurationError(
                    "ngram_prompt_lookup_min must be at least 1 and at most ngram_prompt_lookup_max"
                )
        elif longest is not None or shortest is not None:
            raise ConfigurationError("ngram_prompt_lookup_max and _min belong to [ngram]")

    def speculation_config(self) -> SpeculationConfig | None:
        """None where nothing drafts for the worker.

        Raises:
            ConfigurationError: the speculative model cannot be found, or two drafters are asked
                for that both run on the worker.
        """
        kind = self.speculative_kind()
        has_lookahead = self.lookahead_cache_config_dir is not None
        if has_lookahead and kind in ("ngram", "heads"):
            raise ConfigurationError(
                f"the lookahead cache and {kind} both draft on the worker: choose one of them"
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
            num_speculative_tokens=self.num_speculative_tokens,
            acceptance_method=self.spec_decoding_acceptance_method,
            posterior_threshold=self.typical_acceptance_sampler_posterior_threshold,
            posterior_alpha=self.typical_acceptance_sampler_posterior_alpha,
            disable_logprobs=self.disable_logprobs_during_spec_decoding,
        )

    def speculative_kind(self) -> SpeculativeKind | None:
        """What the speculative model is.

        Raises:
            ConfigurationError: it cannot be found or read.
        """
        if self.speculative_model is None:
            return None
        if self.speculative_model == NGRAM:
            return "ngram"
        return "heads" if are_heads(self._located()) else "draft model"

    def draft_model(self) -> str | None:
        """Directory or hub id of the model that a draft worker is to run; None: there is none.

        Raises:
            ConfigurationError: the speculative model cannot be found or read.
        """
        return self._located() if self.speculative_kind() == "draft model" else None

    def _located(self) -> str:
        assert self.speculative_model is not None
        return locate_model(self.speculative_model)
