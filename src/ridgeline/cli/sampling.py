"""Flags of `SamplingParams`: one table for every verb that generates. A flag that is not given keeps the model's default.

Ranges are checked in `engine.admit`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.setting_flags import Verb, add_flags
from ridgeline.core.params import OPTIONS, Option, SamplingParams, Vote
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.errors import ConfigError

MANY: Final = 1 << 20
"""Ids and positions of a model that refuses no number because of its size."""


def _flag(option: Option) -> Any:
    return Annotated[(int if option.bound.whole else float) | None, typer.Option(help=option.help)]


FLAGS: Final[Mapping[str, Any]] = {
    "max_tokens": Annotated[int | None, typer.Option(help="Most output tokens of each choice.")],
    **{name: _flag(option) for name, option in OPTIONS.items()},
    "seed": Annotated[int | None, typer.Option(help="Seed of every answer [random].")],
    "stop": Annotated[list[str] | None, typer.Option(help="Text that ends a choice; may be repeated.")],
    "bad_words": Annotated[list[str] | None, typer.Option("--bad-word", help="Text that is never generated; may be repeated.")],
    "stop_token_ids": Annotated[list[str] | None, typer.Option("--stop-token-id", help="Token id that ends a choice; may be repeated.")],
    "allowed_token_ids": Annotated[
        list[str] | None, typer.Option("--allowed-token-id", help="Token id that may be sampled, and no other; may be repeated.")
    ],
    "logit_bias": Annotated[
        list[str] | None, typer.Option("--logit-bias", metavar="ID=BIAS", help="Added to the logit of a token id; may be repeated.")
    ],
    "min_tokens": Annotated[int | None, typer.Option(help="Fewest output tokens of each choice.")],
    "thinking_token_budget": Annotated[int | None, typer.Option(help="Most tokens of reasoning, which is then ended [no limit].")],
    "ignore_eos": Annotated[bool | None, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.")],
}
"""Field of `SamplingParams` → its flag."""


VOTES: Final = {"vote_marker": "marker", "vote_json": "json_pointer", "vote_regex": "regex"}
"""Flag → field of `Vote`."""


def read_vote(given: Mapping[str, Any]) -> Vote | None:
    """The vote that flags ask for; None where they ask for none."""
    asked = {field: given[flag] for flag, field in VOTES.items() if given.get(flag) is not None}
    return Vote(**asked) if asked else None


def with_sampling_flags(verb: Verb) -> Verb:
    """Replaces the `**sampling` parameter of `verb` by the flags of the table."""
    return add_flags(verb, FLAGS)


def make_sampling_params(sampling: Mapping[str, Any], default: SamplingParams) -> SamplingParams:
    """The default parameters with the given values. Raises ConfigError."""
    values: dict[str, Any] = {}
    for name, value in sampling.items():
        if value is not None:
            values[name] = tuple(_parse_item(name, each) for each in value) if isinstance(value, list) else value
    return replace(default, **values)


def _parse_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


def check_sampling(given: Mapping[str, Any]) -> None:
    """Raises ConfigError or RequestError for a value that no model takes, before one is loaded."""
    params = make_sampling_params({name: value for name, value in given.items() if value is not None}, SamplingParams())
    limits = ModelLimits(MANY, MANY, frozenset(), KVShape((KVGroup("full", (0,)),), 16, MANY, b""))
    admit([0], params, limits, request_id="", draw_seed=int, bad_words=[[0] for _ in params.bad_words])


_ITEM_PARSERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "stop_token_ids": (int, "a token id"),
    "allowed_token_ids": (int, "a token id"),
    "logit_bias": (_parse_bias, "ID=BIAS, a token id and a number,"),
}
"""Fields with several values that are not text → (parser of one value, its description)."""


def _parse_item(name: str, text: str) -> Any:
    """Parses one value of a field. Raises ConfigError."""
    if name not in _ITEM_PARSERS:
        return text
    read, kind = _ITEM_PARSERS[name]
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{name} has {text[:40]!r}, {kind} was expected", fix={text: None}) from None


def parse_value(name: str, text: str) -> Any:
    """Parses a value of field `name` of the table: `temperature`, "0.7" → 0.7. Raises ConfigError."""
    if name not in FLAGS:
        raise ConfigError(f"there is no parameter {name[:40]!r}; there are: {', '.join(FLAGS)}")
    default = getattr(SamplingParams(), name)
    try:
        if isinstance(default, tuple) or name in _ITEM_PARSERS:
            return (_parse_item(name, text),)
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return float(text) if isinstance(default, float) else int(text)
    except (KeyError, ValueError):
        kind = "true or false" if isinstance(default, bool) else "a number" if isinstance(default, float) else "an integer"
        raise ConfigError(f"{name} is {text[:40]!r}, {kind} was expected") from None
