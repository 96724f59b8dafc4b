"""Self-consistency: of several sampled texts the one whose answer most of them give. Wang et al. 2022, "Self-Consistency".

Owns how an answer is read from a text. What a vote is, is `core.params.Vote`; who may send a regular expression is the caller's to decide:
Python's may take for ever.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ridgeline.core.params import SamplingParams, Vote
from ridgeline.engine.answer import Election, best_indices
from ridgeline.errors import RequestError

MAX_PATTERN_CHARACTERS: Final = 512
MAX_READ_CHARACTERS: Final = 16_384
"""Characters of a text's end, in which its answer is looked for."""
MAX_BRACKETS: Final = 32
"""Brackets of a text at which no value of JSON begins: what is behind the last of them is not looked at."""
_OPENING: Final = re.compile(r"[{\[]")
_MISSING: Final = object()


def check_vote(params: SamplingParams, vote: Vote) -> None:
    """Raises RequestError for the vote of these parameters where it cannot be held."""
    given = [name for name in ("marker", "json_pointer", "regex") if getattr(vote, name) is not None]
    if len(given) != 1:
        raise RequestError(f"vote has {len(given)} ways to read an answer; send one of marker, json_pointer, regex.", param="vote")
    pattern = getattr(vote, given[0])
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARACTERS or (given[0] != "json_pointer" and not pattern):
        raise RequestError(f"vote.{given[0]} must be a text of 1 to {MAX_PATTERN_CHARACTERS} characters.", param="vote")
    if given[0] == "json_pointer" and pattern and not pattern.startswith("/"):
        raise RequestError('vote.json_pointer must be "" or begin with / (RFC 6901).', param="vote")
    if given[0] == "regex":
        try:
            re.compile(pattern)
        except re.error as error:
            raise RequestError(f"vote.regex is no regular expression: {error}.", param="vote") from None
    if params.n != 1 or (params.best_of or 1) < 2:
        message = f"vote elects 1 of best_of answers, at least 2; n is {params.n} and best_of is {params.best_of}."
        raise RequestError(message, param="vote")


def elect(vote: Vote, texts: Sequence[str], cumulative: Sequence[float]) -> tuple[int, Election]:
    """The index of the elected text, the likeliest of those with the answer that most have, and how the vote went.

    cumulative: their log-probabilities. Of answers with as many votes that of the likelier text wins; a text without an answer has no
    vote, and where none has one the likeliest text is taken.
    """
    answers = [read_answer(vote, text) for text in texts]
    votes = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=0)
    elected: set[str | None] = {answer for answer, count in votes.items() if count == most}
    elected = elected or {None}
    index = next(each for each in best_indices(cumulative, len(texts)) if answers[each] in elected)
    return index, Election(answers[index], most, len(texts))


def read_answer(vote: Vote, text: str) -> str | None:
    """The answer that a text gives; None where it gives none."""
    text = text[-MAX_READ_CHARACTERS:]
    if vote.marker is not None:
        _, found, behind = text.rpartition(vote.marker)
        return behind.strip().partition("\n")[0].strip() or None if found else None
    if vote.json_pointer is not None:
        return _at_pointer(vote.json_pointer, text)
    matches = [*re.finditer(vote.regex or "", text)]
    return matches[-1][1 if matches[-1].re.groups else 0] if matches else None


def _at_pointer(pointer: str, text: str) -> str | None:
    """The value at the pointer in the text's last object or array, as canonical JSON, a string as it is. RFC 6901."""
    value, place, strange, decoder = _MISSING, 0, 0, json.JSONDecoder()
    while strange < MAX_BRACKETS and (start := _OPENING.search(text, place)) is not None:
        try:
            value, place = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            place, strange = start.end(), strange + 1
    for part in pointer.split("/")[1:]:
        value = _member(value, part.replace("~1", "/").replace("~0", "~"))
    if value is _MISSING:
        return None
    try:
        answer = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    except RecursionError:  # it was just shallow enough to be read
        return None
    return answer.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", name) and int(name) < len(value):
        return value[int(name)]
    return _MISSING
