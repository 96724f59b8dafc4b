"""Flags of `SamplingParams`, one table for every verb that generates. A flag that is not given leaves the model's default.

Ranges are `engine.admit`'s business.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from ridgeline.core.params import OPTIONS, Option, SamplingParams
from ridgeline.errors import ConfigError


def _flag(option: Option) -> Any:
    return Annotated[(int if option.bound.whole else float) | None, typer.Option(help=option.help)]


FLAGS: Final[Mapping[str, Any]] = {
    "max_tokens": Annotated[int | None, typer.Option(help="Output tokens of each choice at most.")],
    **{name: _flag(option) for name, option in OPTIONS.items()},
    "seed": Annotated[int | None, typer.Option(help="Seed of every answer [random].")],
    "stop": Annotated[list[str] | None, typer.Option(help="Text that ends a choice; may be repeated.")],
    "bad_words": Annotated[list[str] | None, typer.Option("--bad-word", help="Text that may not come; may be repeated.")],
    "stop_token_ids": Annotated[list[str] | None, typer.Option("--stop-token-id", help="Token id that ends a choice; may be repeated.")],
    "allowed_token_ids": Annotated[
        list[str] | None, typer.Option("--allowed-token-id", help="Token id that may come, and no other; may be repeated.")
    ],
    "logit_bias": Annotated[
        list[str] | None, typer.Option("--logit-bias", metavar="ID=BIAS", help="Added to the logit of a token id; may be repeated.")
    ],
    "min_tokens": Annotated[int | None, typer.Option(help="Output tokens before which nothing ends a choice.")],
    "ignore_eos": Annotated[bool | None, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.")],
}
"""Field of `SamplingParams` → its flag."""


def with_sampling_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """`verb`, which takes `**sampling`, with the flags of the table in its place: they arrive as keywords, None where not given."""
    signature = inspect.signature(verb)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    flags = [inspect.Parameter(name, keyword, default=None, annotation=annotation) for name, annotation in FLAGS.items()]
    verb.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    verb.__annotations__ = {**{each.name: each.annotation for each in own}, **FLAGS}
    return verb


def chosen(sampling: Mapping[str, Any], default: SamplingParams) -> SamplingParams:
    """The default with what was given in its place."""
    given: dict[str, Any] = {}
    for name, value in sampling.items():
        if value is not None:
            given[name] = tuple(_item(name, each) for each in value) if isinstance(value, list) else value
    return replace(default, **given)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


_ITEMS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "stop_token_ids": (int, "a token id"),
    "allowed_token_ids": (int, "a token id"),
    "logit_bias": (_bias, "ID=BIAS, a token id and a number,"),
}
"""Of fields with many values that are no texts: how one is read, and what it is."""


def _item(name: str, text: str) -> Any:
    """One of a field's values. Raises ConfigError with the cause."""
    if name not in _ITEMS:
        return text
    read, kind = _ITEMS[name]
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{name} has {text[:40]!r}, {kind} was expected") from None


def parsed(name: str, text: str) -> Any:
    """A value of the field `name` of the table as it is typed: `temperature`, "0.7" → 0.7. Raises ConfigError with the cause."""
    if name not in FLAGS:
        raise ConfigError(f"there is no parameter {name[:40]!r}; there are: {', '.join(FLAGS)}")
    default = getattr(SamplingParams(), name)
    try:
        if isinstance(default, tuple) or name in _ITEMS:
            return (_item(name, text),)
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return float(text) if isinstance(default, float) else int(text)
    except (KeyError, ValueError):
        kind = "true or false" if isinstance(default, bool) else "a number" if isinstance(default, float) else "an integer"
        raise ConfigError(f"{name} is {text[:40]!r}, {kind} was expected") from None
