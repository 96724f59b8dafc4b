"""Explanations of requests: `GET /v1/requests/{id}/explain` for clients, `/explain` of the admin socket.

Owns who may see what: a client its own key's requests, of others in their way only that they were there, and of a missed prefix only what
prompts of its own tenant and salt tell: what others have sent could be guessed block by block. The arithmetic
runs in a thread, one explanation at a time, never in the loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.engine.executor import ExecutorInfo
from ridgeline.observe.charges import CAUSES, Charges, charge, slowest_choice, wall
from ridgeline.observe.doctor import MISSES, Miss, diagnose, found_in, offenders
from ridgeline.observe.ledger import Ledger, RequestRecord
from ridgeline.observe.shares import Distribution, distribution, slowest
from ridgeline.server import explain_shapes as shapes
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response

MAX_ID: Final = 128
MAX_SLOWEST: Final = 100
MAX_WINDOW_SECONDS: Final = 86_400.0
DEFAULT_WINDOW_SECONDS: Final = 300.0
EXPLAIN_QUERY: Final[Mapping[str, Mapping[str, Any]]] = {
    "id": {"type": "string"}, "slowest": {"type": "integer", "minimum": 1, "maximum": MAX_SLOWEST},
    "window_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WINDOW_SECONDS},
}  # fmt: skip
PREFIX_QUERY: Final[Mapping[str, Mapping[str, Any]]] = {"window_seconds": EXPLAIN_QUERY["window_seconds"]}
MAX_DIAGNOSED: Final = 500
"""Last requests of a window whose misses are looked at."""
MAX_OFFENDERS: Final = 50
_TURN: Final = asyncio.Lock()
Result = TypeVar("Result")


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def explain(request: Request) -> Response:
        caller, name = current_caller(), request.path_params["id"]
        record = service.ledger.find(name[:MAX_ID], None if caller.is_admin else caller.owner)
        if record is None or (record.owner != caller.owner and not caller.is_admin):
            raise _unknown(name)
        info, is_admin, owner = service.model.engine.info, caller.is_admin, caller.owner

        def work() -> shapes.Explanation:
            return explain_one(service, record, info, lambda other: is_admin or other.owner == owner, is_admin)

        return json_response(await _in_turn(work))

    return [Route("/v1/requests/{id}/explain", explain, methods=["GET"])]


async def explain_many(service: Service, query: Mapping[str, str]) -> shapes.Explained:
    """Explains what an admin asks for: one request by `id`, the `slowest` of a window, or what its requests have in common. Raises
    ApiError."""
    ledger, window = service.ledger, _number(query, "window_seconds", DEFAULT_WINDOW_SECONDS, MAX_WINDOW_SECONDS)
    if name := query.get("id"):
        record = ledger.find(name[:MAX_ID])
        if record is None:
            raise _unknown(name)
        records = [record]
    else:
        records = ledger.ended_since(time.monotonic() - window)
        if "slowest" not in query:
            ttft, total = await _in_turn(lambda: (distribution(ledger, records, to_first=True), distribution(ledger, records)))
            counts = service.outcomes.since(time.monotonic() - window)
            return shapes.Explained(ttft=_distribution(ttft), total=_distribution(total), counts=counts)
        count = int(_number(query, "slowest", 1, MAX_SLOWEST))
        records = slowest(records, count)
    info = service.model.engine.info
    return shapes.Explained(await _in_turn(lambda: tuple(explain_one(service, each, info, lambda other: True, True) for each in records)))


async def _in_turn(work: Callable[[], Result]) -> Result:
    async with _TURN:
        return await asyncio.to_thread(work)


def _unknown(name: str) -> ApiError:
    text = "the ledger has the last requests of this server alone; give the id of an answer, or its X-Request-Id"
    return ApiError("not_found", f"no request {name[:MAX_ID]!r} of yours is known: {text}", param="id")


def _number(query: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= most:
        raise ApiError("invalid_value", f"{name} is {text!r:.40}; give a number above 0, at most {most:g}", param=name)
    return value


def explain_one(
    service: Service, record: RequestRecord, info: ExecutorInfo, may_name: Callable[[RequestRecord], bool], is_admin: bool
) -> shapes.Explanation:
    """The explanation of a request. `may_name`: the reader may know the id of this request in its way."""
    ledger, tokenizer = service.ledger, service.model.tokenizer
    decode = partial(tokenizer.decode, skip_special=False)
    miss = diagnose(service.prefixes, ledger, record, decode, tokenizer.is_control, own=not is_admin)
    number = slowest_choice(record)
    choice, (total_seconds, ttft_seconds) = record.choices.get(number), wall(record, number)
    total = _part(ledger, charge(ledger, record, number), total_seconds, may_name, is_admin)
    ttft = None
    if ttft_seconds is not None:
        ttft = _part(ledger, charge(ledger, record, number, to_first=True), ttft_seconds, may_name, is_admin)
    counterfactual = _counterfactual(service, record, info)
    return shapes.Explanation(
        id=record.request_id, choice=number, state="open" if choice is None or choice.times is None else choice.reason,
        prompt_tokens=record.prompt_tokens, cached_tokens=0 if choice is None else min(choice.hit_tokens, record.prompt_tokens),
        output_tokens=0 if choice is None else choice.output_tokens,
        preemptions=0 if choice is None else sum(mark.kind == "preempted" and mark.detail != "restart" for mark in choice.marks),
        engines=record.engines, total=total, ttft=ttft, counterfactual=counterfactual, summary=_summary(total, ttft, counterfactual),
        prefix_miss=_miss(miss, is_admin), tenant=record.tenant if is_admin else None,
        cached_in={} if choice is None else choice.tier_tokens,
    )  # fmt: skip


async def explain_prefixes(service: Service, query: Mapping[str, str]) -> shapes.PrefixReport:
    """Explains to an admin why prompts of a window missed the prefix cache. Raises ApiError."""
    window, tokenizer = _number(query, "window_seconds", DEFAULT_WINDOW_SECONDS, MAX_WINDOW_SECONDS), service.model.tokenizer
    records = service.ledger.ended_since(time.monotonic() - window)[-MAX_DIAGNOSED:]
    decode = partial(tokenizer.decode, skip_special=False)
    found = await _in_turn(lambda: offenders(service.prefixes, service.ledger, records, decode, tokenizer.is_control))
    hits = [min(each.choices[0].hit_tokens, each.prompt_tokens) for each in records if 0 in each.choices]
    return shapes.PrefixReport(
        len(records), sum(each.prompt_tokens for each in records), sum(hits),
        tuple(
            shapes.PrefixOffender(
                each.cause, MISSES[each.cause], each.place, each.requests, each.tokens, round(each.ms, 3), _miss(each.example, True),
                tuple(each.ids),
            )
            for each in found[:MAX_OFFENDERS]
        ),
        found_in(records),
    )  # fmt: skip


def _miss(found: Miss | None, is_admin: bool) -> shapes.PrefixMiss | None:
    if found is None:
        return None
    texts = (found.mine, found.theirs) if is_admin else (None, None)
    return shapes.PrefixMiss(found.cause, MISSES[found.cause], found.at, found.tokens, round(found.ms, 3), *texts)


def _part(ledger: Ledger, charges: Charges, measured: float, may_name: Callable[[RequestRecord], bool], is_admin: bool) -> shapes.Part:
    total = charges.total

    def blocker(name: str, seconds: float) -> shapes.Blocker:
        other = ledger.find(name)
        known = other is not None and may_name(other)
        return shapes.Blocker(name if known else "another request", _ms(seconds), other.tenant if other is not None and is_admin else None)

    causes = tuple(
        shapes.Cause(
            cause, CAUSES.get(cause, cause), _ms(charges.seconds[cause]), round(charges.seconds[cause] / total, 4) if total else 0.0,
            tuple(blocker(*each) for each in charges.blockers.get(cause, ())),
        )
        for cause in sorted(charges.seconds, key=_place)
    )  # fmt: skip
    return shapes.Part(_ms(total), _ms(measured or total), charges.first, causes)


def _place(cause: str) -> int:
    return [*CAUSES].index(cause) if cause in CAUSES else len(CAUSES)


def _counterfactual(service: Service, record: RequestRecord, info: ExecutorInfo) -> shapes.Counterfactual:
    found = service.counterfactuals.alone(service.ledger, record, info)
    if found is None:
        return shapes.Counterfactual()
    return shapes.Counterfactual(_ms(found.ttft), _ms(found.total), _ms(found.cached_ttft))


def _summary(total: shapes.Part, ttft: shapes.Part | None, found: shapes.Counterfactual) -> str:
    """One sentence for a person."""
    part, name = (total, "in all") if ttft is None else (ttft, "to the first token")
    text = f"{part.ms:,.0f} ms {name}"
    greatest = next((each for each in part.causes if each.cause == part.first), None)
    if greatest is not None:
        behind = f" (behind {len(greatest.blockers)} requests)" if len(greatest.blockers) > 1 else ""
        text += f", {greatest.share:.0%} of it as {greatest.what}{behind}"
    if ttft is not None and found.alone_ttft_ms is not None:
        text += f"; alone {found.alone_ttft_ms:,.0f} ms, with its prompt cached {found.prefix_hit_ttft_ms:,.0f} ms"
    return text


def _distribution(found: Distribution | None) -> shapes.Distribution | None:
    if found is None:
        return None
    excess = sum(max(0.0, slow - median) for median, slow in found.causes.values())
    causes = tuple(
        shapes.Share(cause, CAUSES.get(cause, cause), _ms(median), _ms(slow), round(max(0.0, slow - median) / excess, 4) if excess else 0.0)
        for cause, (median, slow) in found.causes.items()
    )
    return shapes.Distribution(found.requests, _ms(found.p50), _ms(found.p95), causes[0].cause if causes else None, causes)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
