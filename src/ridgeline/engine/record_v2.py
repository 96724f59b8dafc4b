"""Conversion of recordings of version 2, whose plans name the positions that they select, to the current version.

The decisions are the same, so that a converted recording replays to the same plans and tokens.
"""

import ast
import json
from dataclasses import MISSING, fields
from itertools import accumulate
from typing import Any, Final

from ridgeline.core.params import RowParams, Sampling

MAGIC: Final = b"ridgeline recording 2\n"
_KV_FIELDS: Final = {"pages": "blocks", "host_pages": "host_blocks", "page_bytes": "block_bytes"}
_DEFAULTS: Final[dict[str | None, object]] = {
    field.name: field.default for kind in (RowParams, Sampling) for field in fields(kind) if field.default is not MISSING
}


def setup(recorded: dict[str, Any]) -> dict[str, Any]:
    """Converts the first record, in which KV blocks are called pages."""
    kv = {_KV_FIELDS.get(name, name): value for name, value in recorded["kv"].items()}
    return recorded | {"kv": kv}


def turn(recorded: dict[str, Any]) -> dict[str, Any]:
    """Converts any other record. Rows that are not finite have a meaningless sampled id there, which is dropped."""
    decisions = [_decision(line) for line in recorded["decisions"]]
    sampled = [ids if finite else [] for ids, finite in zip(recorded["sampled"], recorded["finite"], strict=True)]
    return recorded | {"decisions": decisions, "sampled": sampled}


def _decision(line: str) -> str:
    """Converts the line of a plan: step, columns (row, start, count, tokens, select, sample, needs_commit), deltas, copies if any."""
    step, _, rest = line.partition(" ")
    columns, _, deltas = rest.partition("]] ")
    row, start, count, tokens, select, sample, _ = json.loads(columns + "]]")
    new_rows, _, deltas = deltas.partition("] [")
    new_rows = ast.unparse(_WithoutDefaults().visit(ast.parse(new_rows + "]", mode="eval")))
    deltas, copy, copies = deltas.partition(" copies ")
    scores = _scores(count, select, sample)
    return f"{step} {[row, start, count, tokens, sample]} {new_rows} [{deltas}{f' scores {scores}' if scores else ''}{copy}{copies}"


class _WithoutDefaults(ast.NodeTransformer):
    """Removes parameters that have their defaults, which version 2 wrote in full."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg not in _DEFAULTS or _value(each.value) != _DEFAULTS[each.arg]]
        return node


def _value(node: ast.expr) -> object:
    """The value of a parameter. `Sampling()` is what remains of one that has nothing but defaults."""
    if isinstance(node, ast.Call):
        return node if node.keywords else Sampling()
    return ast.literal_eval(node)


def _scores(count: list[int], select: list[int], sample: list[int]) -> list[tuple[int, int, int]]:
    """Returns (row index, first, count) of the positions that are selected and do not sample."""
    found = []
    for index, (tokens, end, samples) in enumerate(zip(count, accumulate(count), sample, strict=True)):
        scored = [place - end + tokens for place in select if end - tokens <= place < end - samples]
        if scored:
            found.append((index, scored[0], len(scored)))
    return found
