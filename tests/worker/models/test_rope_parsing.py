"""Rotary settings of config.json in every form, and those that cannot be used."""

from __future__ import annotations

import re
from typing import Any

import pytest

from taco_worker.models.rope import (
    DynamicScaling,
    LinearScaling,
    LongScaling,
    NtkScaling,
    RopeScaling,
    RotaryConfig,
    YarnScaling,
    exact_length,
    scaled_max_position_embeddings,
)
from taco_worker.models.rope_parsing import check_rope_names, parse_layer_rotary, parse_rotary

LENGTH = {"max_position_embeddings": 4096}
LONGROPE = {"rope_type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3.5]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RotaryConfig(10_000.0)),
        ({"rope_theta": 5e5}, RotaryConfig(5e5)),
        ({"rotary_emb_base": 2e4, "rotary_pct": 0.25}, RotaryConfig(2e4, None, 0.25)),
        ({"rope_embedding_base": 1e6}, RotaryConfig(1e6)),
        ({"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5}}, None),
        ({"rope_theta": 7.0, "partial_rotary_factor": 0.5}, None),
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
            RotaryConfig(10_000.0, None, 1.0, (2, 3, 3)),
        ),
        (
            {"rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [1, 2, 0]}},
            RotaryConfig(10_000.0, None, 1.0, (1, 2, 0)),
        ),
    ],
    ids=str,
)
def test_old_and_new_fields(fields: dict[str, Any], expected: RotaryConfig | None) -> None:
    assert parse_rotary({**LENGTH, **fields}) == (expected or RotaryConfig(7.0, None, 0.5))


def test_defaults_of_an_architecture() -> None:
    defaults = {"default_theta": 5e5, "default_partial": 0.5}
    assert parse_rotary(LENGTH, **defaults) == RotaryConfig(5e5, None, 0.5)
    given = {**LENGTH, "rope_theta": 3.0, "partial_rotary_factor": 1}
    assert parse_rotary(given, **defaults) == RotaryConfig(3.0)


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_every_name_of_long_factors(kind: str) -> None:
    fields = {
        **LENGTH,
        "original_max_position_embeddings": 1024,
        "rope_scaling": {"type": kind, **{k: v for k, v in LONGROPE.items() if k != "rope_type"}},
    }
    rotary = parse_rotary(fields)
    assert isinstance(rotary.scaling, LongScaling)
    assert rotary.scaling.short_factors == (1.0, 1.5)
    assert rotary.scaling.long_factors == (2.0, 3.5)
    assert rotary.scaling.long_attention_factor == pytest.approx((1 + 2 / 10) ** 0.5)
    assert scaled_max_position_embeddings(rotary, 4096) == 4096


def test_the_original_length_beside_the_settings_counts_first() -> None:
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    fields = {**LENGTH, "rope_scaling": scaling, "original_max_position_embeddings": 1024}
    rotary = parse_rotary(fields)
    assert isinstance(rotary.scaling, YarnScaling)
    assert rotary.scaling.original_max_position_embeddings == 1024


def test_settings_that_scale_nothing_need_no_type() -> None:
    settings = {"rope_theta": 5.0, "rotary_pct": 0.5, "mrope_section": [1, 1, 0], "factor": None}
    expected = RotaryConfig(5.0, None, 0.5, (1, 1, 0))
    assert parse_rotary({**LENGTH, "rope_parameters": settings}) == expected


def test_settings_by_layer_type() -> None:
    fields = {
        **LENGTH,
        "rope_theta": 9.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default"},
            "chunked_attention": None,
        },
    }
    types = ("full_attention", "sliding_attention", "chunked_attention")
    assert parse_layer_rotary(fields, types) == {
        "full_attention": RotaryConfig(1e6, LinearScaling(8.0)),
        "sliding_attention": RotaryConfig(9.0),
        "chunked_attention": None,
    }
    with pytest.raises(ValueError, match=r"by layer type \(full_attention, sliding_attention, ch"):
        parse_rotary(fields)


def test_old_fields_may_leave_layer_types_unscaled() -> None:
    fields = {**LENGTH, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    types = ("full_attention", "sliding_attention")
    scaled = RotaryConfig(5e5, LinearScaling(2.0))
    for theta, expected in ((None, 5e5), (1e4, 1e4)):
        parsed = parse_layer_rotary(fields, types, unscaled={"sliding_attention": theta})
        assert parsed == {"full_attention": scaled, "sliding_attention": RotaryConfig(expected)}


@pytest.mark.parametrize("value", [3, "yarn", [], True])
def test_settings_of_a_layer_type_are_an_object(value: object) -> None:
    fields = {**LENGTH, "rope_parameters": {"full_attention": value}}
    message = f"rope_parameters of full_attention must be an object, not {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_layer_rotary(fields, ("full_attention", "sliding_attention"))
    with pytest.raises(ValueError, match=r"by layer type \(full_attention\) are not supported"):
        parse_rotary(fields)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "spiral"}, "unknown rope scaling 'spiral': known are default, linear, "),
        ({"rope_type": "axial"}, "unknown rope scaling 'axial'"),
        ({"rope_theta": 0}, "rope_theta must be above 0, not 0"),
        ({"rope_theta": "x"}, "rope_theta must be above 0, not 'x'"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be at most 1, not 1.5"),
        ({"partial_rotary_factor": True}, "partial_rotary_factor must be above 0, not True"),
        ({**LONGROPE, "long_factor": None}, "'longrope' needs a list 'long_factor', not None"),
        ({**LONGROPE, "short_factor": [1, -1]}, "short_factor must be above 0, not -1"),
        ({"rope_type": "yarn", "factor": 0}, "'yarn' needs a positive 'factor', not 0"),
        ({"mrope_section": [2.5, 1, 1]}, r"mrope_section must be 3 integers, not \[2.5, 1, 1\]"),
        ({"mrope_section": [2, 2]}, r"mrope_section must be 3 integers, not \[2, 2\]"),
        ({"mrope_section": [4], "mrope_interleaved": True}, "mrope_interleaved is not supported"),
        ({"factor": 8.0}, r"rope_scaling needs a rope_type \(default, linear, .*got only 'factor'"),
        ({"rope_typ": "linear", "factor": 8.0}, "needs a rope_type .*'rope_typ', 'factor'"),
        ({"rope_type": None, "factor": 8.0, "rope_theta": 5.0}, "needs a rope_type"),
    ],
    ids=str,
)
def test_unusable_settings_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rotary({**LENGTH, "rope_parameters": parameters})


@pytest.mark.parametrize(
    ("parameters", "head_dim", "message"),
    [
        ({}, 15, "an even rotary_dim of 2 or more, not 15"),
        ({"partial_rotary_factor": 0.01}, 64, "an even rotary_dim of 2 or more, not 0"),
        (
            {"mrope_section": [4, 2, 2]},
            32,
            r"\[4, 2, 2\] must sum to half of rotary_dim 32",
        ),
        (LONGROPE, 8, "rope scaling needs 4 short_factor numbers, not 2"),
        ({"rope_type": "dynamic", "factor": 2.0}, 2, "needs a rotary_dim above 2"),
    ],
    ids=str,
)
def test_settings_must_fit_to_the_heads(
    parameters: dict[str, Any], head_dim: int, message: str
) -> None:
    rotary = parse_rotary({**LENGTH, "rope_parameters": parameters})
    with pytest.raises(ValueError, match=message):
        rotary.rotary_dim(head_dim)


_YARN = {"factor": 4.0, "beta_fast": 32}


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        ({"type": "yarn", **_YARN}, {"rope_type": "yarn", "rope_theta": 7.0, **_YARN}),
        ({"rope_type": "yarn", "rope_theta": 7, **_YARN}, {"rope_type": "yarn", **_YARN}),
        ({"type": "yarn", "mscale": None, **_YARN}, {"rope_type": "yarn", **_YARN}),
        ({"type": "su", **LONGROPE, "rope_type": None}, LONGROPE),
        (
            {"type": "mrope", "mrope_section": [2, 3, 3]},
            {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 7.0},
        ),
        (
            {"type": "linear", "factor": 8},
            {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": None},
        ),
        ({}, {"rope_type": "yarn", **_YARN}),
        ({"type": "yarn", **_YARN}, None),
    ],
    ids=str,
)
def test_equal_settings_by_both_names_are_read(scaling: Any, parameters: Any) -> None:
    fields = {"rope_theta": 7.0, "rope_scaling": scaling, "rope_parameters": parameters}
    check_rope_names({**LENGTH, **fields})


@pytest.mark.parametrize(
    ("scaling", "parameters", "names"),
    [
        ({"type": "yarn", **_YARN}, {"rope_type": "default"}, "beta_fast, factor, rope_type"),
        ({"type": "yarn", **_YARN}, {"type": "yarn", **_YARN, "factor": 2.0}, "factor"),
        ({"type": "yarn", **_YARN}, {"type": "yarn", **_YARN, "truncate": False}, "truncate"),
        ({"type": "yarn", **_YARN}, {"type": "yarn", **_YARN, "rope_theta": 8.0}, "rope_theta"),
        (
            {"type": "linear", "factor": 8.0},
            {"full_attention": {"rope_type": "default"}, "sliding_attention": None},
            "factor, rope_type",
        ),
        ({"type": "linear", "factor": 8.0}, {"full_attention": None}, "factor, rope_type"),
    ],
    ids=str,
)
def test_settings_that_differ_by_name_are_rejected(
    scaling: Any, parameters: Any, names: str
) -> None:
    fields = {"rope_theta": 7.0, "rope_scaling": scaling, "rope_parameters": parameters}
    message = f"rope_scaling and rope_parameters differ in {names}: remove one of them, or"
    with pytest.raises(ValueError, match=message):
        check_rope_names({**LENGTH, **fields})


@pytest.mark.parametrize(
    "scaling",
    [
        DynamicScaling(2.0, 100),
        NtkScaling(100),
        LongScaling((1.0,), (2.0,), 1.0, 1.0, 100),
    ],
    ids=lambda one: type(one).__name__,
)
def test_length_from_which_short_sequences_are_scaled(scaling: RopeScaling) -> None:
    rotary = RotaryConfig(1e4, scaling)
    assert [exact_length(rotary, length) for length in (99, 100, 101)] == [None, None, 100]


def test_most_scalings_are_the_same_at_any_length() -> None:
    for scaling in (None, LinearScaling(2.0)):
        assert exact_length(RotaryConfig(1e4, scaling), 10**6) is None
