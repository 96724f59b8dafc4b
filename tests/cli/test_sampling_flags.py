"""Flags of sampling parameters with many values: as typed on a command line, and in a conversation."""

import re

import pytest

from ridgeline.cli.sampling import FLAGS, make_sampling_params, parse_value
from ridgeline.core.params import SamplingParams
from ridgeline.errors import ConfigError


def test_ids_and_biases_are_read() -> None:
    given = {"stop_token_ids": ["3", "4"], "allowed_token_ids": ["7"], "logit_bias": ["5=-2.5", "6=1"], "stop": ["a"], "seed": None}
    found = make_sampling_params(given, SamplingParams(temperature=0.5))
    assert (found.stop_token_ids, found.allowed_token_ids, found.logit_bias) == ((3, 4), (7,), ((5, -2.5), (6, 1.0)))
    assert (found.stop, found.temperature) == (("a",), 0.5)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("stop_token_ids", "3", (3,)), ("allowed_token_ids", "7", (7,)), ("logit_bias", "5=-2.5", ((5, -2.5),)), ("bad_words", "x", ("x",))],
)
def test_one_value_is_read_as_it_is_typed_in_a_conversation(name: str, text: str, value: object) -> None:
    assert parse_value(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [("stop_token_ids", "x", "a token id"), ("allowed_token_ids", "1.5", "a token id"), ("logit_bias", "5", "ID=BIAS"),
     ("logit_bias", "a=1", "ID=BIAS"), ("logit_bias", "5=b", "ID=BIAS")],
)  # fmt: skip
def test_what_is_none_is_named(name: str, text: str, wanted: str) -> None:
    for read in (lambda: parse_value(name, text), lambda: make_sampling_params({name: [text]}, SamplingParams())):
        with pytest.raises(ConfigError, match=f"{name} .*{re.escape(repr(text))}.*{wanted}"):
            read()


def test_every_flag_is_a_field() -> None:
    assert set(FLAGS) <= set(SamplingParams.__dataclass_fields__)
