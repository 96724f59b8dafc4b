"""The prefix doctor: why prompts did not find in the prefix cache what they might have, by cause, with what that cost.

Reads what `observe.prefixes` and the ledger keep; texts are made here, of a few tokens around a divergence, for whoever runs the server.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ridgeline.observe.charges import charge
from ridgeline.observe.ledger import Ledger, RequestRecord
from ridgeline.observe.prefixes import Divergence, PromptLog

MISSES: Final = {
    "short": "the prompt, or what it shares, is below one block of the cache",
    "first": "no earlier prompt is like it",
    "new": "it goes on differently from here, as another question does",
    "timestamp": "a date or a time stands before what is shared: move it to the end, or round it",
    "identifier": "an id drawn for each request stands before what is shared: move it to the end, or leave it out",
    "number": "a number that changes stands before what is shared",
    "order": "the same parts come in another order, as tools or documents of a set do: sort them",
    "whitespace": "spaces or line ends differ",
    "template": "control tokens differ: another template, role or reasoning setting",
    "removed": "something that was there is left out, as when a history is cut at its start",
    "inserted": "something is put in before what is shared",
    "edited": "a text in the middle has changed",
    "salt": "the same prompt came with another cache_salt",
    "tenant": "the same prompt came with the key of another tenant",
    "adapter": "the same prompt came for another adapter: what is cached is an adapter's own",
    "busy": "the same prompt was still being computed",
    "evicted": "it was cached, and its blocks have been used for others since",
}
"""Cause of a miss → what it means."""
NATURAL: Final = frozenset({"first", "new"})
"""Causes that no change of a client's would help."""
_TIME: Final = re.compile(r"\d{1,4}[-/.:]\d{1,2}|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)")
_ID: Final = re.compile(r"(?=[0-9a-zA-Z_-]*\d)(?=[0-9a-zA-Z_-]*[a-zA-Z])[0-9a-zA-Z_-]{6,}")
MAX_TEXT: Final = 80
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class Miss:
    """One miss. `tokens`: that would have been cached but for it; `ms`: what they took."""

    cause: str
    at: int
    tokens: int
    ms: float
    mine: str = ""
    theirs: str = ""


@dataclass(slots=True)
class Offender:
    """Misses of one cause at one place, `place` tokens into the prompt."""

    cause: str
    place: int
    requests: int = 0
    tokens: int = 0
    ms: float = 0.0
    example: Miss | None = None
    ids: list[str] = field(default_factory=list)


def diagnose(
    prompts: PromptLog, ledger: Ledger, record: RequestRecord, decode: Decode, is_control: Callable[[int], bool], *, own: bool = False
) -> Miss | None:
    """The miss of a request; None where it had none, or is not known any more. `own`: as prompts of its tenant and salt alone tell."""
    choice, followed = record.choices.get(0), prompts.followed.get(record.request_id)
    if choice is None or followed is None:
        return None
    found, size = followed.own if own else followed.divergence, followed.block_tokens
    if record.prompt_tokens <= size:
        return Miss("short", record.prompt_tokens, 0, 0.0)
    if choice.missed_block is None:
        return None
    if found is None:
        return Miss("first", 0, 0, 0.0)
    missing = found.known_blocks * size - choice.missed_block * size
    if missing > 0:
        cause = _not_there(ledger, record, found)
        return Miss(cause, choice.missed_block * size, missing, _cost(ledger, record, missing))
    mine, theirs = (prompts.ids(each) for each in (found.mine, found.theirs))
    cause = _differs(found, size, mine, theirs, decode, is_control)
    tokens = 0 if cause in NATURAL else max(0, found.again) // size * size
    return Miss(cause, found.at, tokens, _cost(ledger, record, tokens), decode(mine)[:MAX_TEXT], decode(theirs)[:MAX_TEXT])


def offenders(
    prompts: PromptLog, ledger: Ledger, records: Sequence[RequestRecord], decode: Decode, is_control: Callable[[int], bool]
) -> list[Offender]:
    """Misses together, by cause and place, the dearest first."""
    found: dict[tuple[str, int], Offender] = {}
    for record in records:
        miss = diagnose(prompts, ledger, record, decode, is_control)
        if miss is None:
            continue
        place = 0 if miss.cause in NATURAL else miss.at
        each = found.setdefault((miss.cause, place), Offender(miss.cause, place))
        each.requests, each.tokens, each.ms = each.requests + 1, each.tokens + miss.tokens, each.ms + miss.ms
        if each.example is None or miss.ms > each.example.ms:
            each.example = miss
        each.ids = [*each.ids, record.request_id][-3:]
    return sorted(found.values(), key=lambda each: (-each.ms, -each.requests))


def found_in(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Tier → prompt tokens that were found there and not on the device."""
    found = Counter[str]()
    for each in records:
        if 0 in each.choices:
            found.update(each.choices[0].tier_tokens)
    return dict(found)


def _not_there(ledger: Ledger, record: RequestRecord, found: Divergence) -> str:
    """The cause for which blocks of a prompt that had been sent before were not in the cache."""
    if not found.same_salt:
        return "salt" if found.same_tenant else "tenant"
    if not found.same_adapter:
        return "adapter"
    other = ledger.find(found.other)
    times = None if other is None or not other.choices else other.choices[min([*other.choices])].times
    first = None if times is None else times.first_token_at
    if other is not None and (first is None or first > record.admitted):
        return "busy"
    return "evicted"


def _differs(
    found: Divergence, block_tokens: int, mine: list[int], theirs: list[int], decode: Decode, is_control: Callable[[int], bool]
) -> str:
    """The kind of the difference of two prompts."""
    if found.is_moved:
        return "order"
    before = found.before
    here = mine[before : before + max(0, found.added)] if found.added >= 0 else mine[before:]
    there = theirs[before : before + max(0, found.gone)] if found.gone >= 0 else theirs[before:]
    one, other = decode(here), decode(there)
    if {*filter(is_control, here)} != {*filter(is_control, there)}:
        return "template"
    if found.again == 0:
        return "short" if found.at < block_tokens and found.at > 0 else "new"
    if "".join(one.split()) == "".join(other.split()):
        return "whitespace"
    around = [decode(each[max(0, before - 6) : before + count + 2]) for each, count in ((mine, found.added), (theirs, found.gone))]
    if _changes(_TIME, around, one, other):
        return "timestamp"
    if _changes(_ID, around, one, other):
        return "identifier"
    if any(character.isdigit() for character in one) and any(character.isdigit() for character in other):
        return "number"
    if not there or not here:
        return "inserted" if not there else "removed"
    return "inserted" if len(here) > 4 * len(there) else "removed" if len(there) > 4 * len(here) else "edited"


def _changes(pattern: re.Pattern[str], around: Sequence[str], one: str, other: str) -> bool:
    """True if both texts have something of the kind around the difference, not the same, and the difference has a digit."""
    found = [pattern.findall(text) for text in around]
    return all(found) and found[0] != found[1] and any(character.isdigit() for character in one + other)


def _cost(ledger: Ledger, record: RequestRecord, tokens: int) -> float:
    """Milliseconds that so many tokens of a request's prompt took, at the pace of those that were computed."""
    choice = record.choices.get(0)
    computed = record.prompt_tokens - (0 if choice is None else choice.hit_tokens)
    if not tokens or computed <= 0:
        return 0.0
    seconds = charge(ledger, record, 0, to_first=True, named=False).seconds.get("prefill", 0.0)
    return 1e3 * seconds * min(tokens, computed) / computed
