"""Recorded traffic: our own jsonl, Mooncake's jsonl and BurstGPT's csv become arrivals. Numbers are bounded, errors name their line.

Formats: Qin et al. 2024, "Mooncake" (timestamp in ms, input_length, output_length, hash_ids of 512-token blocks); Wang et al. 2024,
"BurstGPT" (Timestamp in s, Request tokens, Response tokens); ours has time in s, prompt, output, and prefix and shared where known.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.traffic import CONTENT_BLOCK, MOST, Arrival

LONGEST_LINE: Final = 1 << 20
MOST_SECONDS: Final = 1e9


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """All requests of a trace, in order of time, which starts at 0; `speed` 2 plays it twice as fast. Raises ConfigError."""
    if not 1e-3 <= speed <= 1e3:
        raise ConfigError(f"--speed is {speed:g}, outside 0.001 … 1000")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = list(_csv(path, file) if path.suffix == ".csv" else _jsonl(path, file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl or csv trace") from None
    if not found:
        raise ConfigError(f"{path.name} holds no request; give a trace with at least one")
    found.sort(key=lambda arrival: arrival.time)
    start = found[0].time
    return [replace(each, time=(each.time - start) / speed) for each in found]


def _jsonl(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _object(path, number, line)
        yield _mooncake(path, number, entry, seen) if "input_length" in entry else _own(path, number, entry)


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise ConfigError(f"{path.name}, line {number} has more than {LONGEST_LINE} characters; is it a trace?")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path.name}, line {number} is no JSON") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{path.name}, line {number} is no object")
    return entry


def _own(path: Path, number: int, entry: dict[str, Any]) -> Arrival:
    prompt = int(_number(path, number, entry, "prompt", 1, MOST))
    prefix = int(_number(path, number, entry, "prefix", 0, 2**31, 0))
    return Arrival(
        _number(path, number, entry, "time", 0, MOST_SECONDS),
        prompt,
        int(_number(path, number, entry, "output", 1, MOST)),
        prefix,
        int(_number(path, number, entry, "shared", 0, prompt, 0)) if prefix else 0,
        level=int(_number(path, number, entry, "level", 0, 1, 0)),
    )


def _mooncake(path: Path, number: int, entry: dict[str, Any], seen: dict[int, int]) -> Arrival:
    """Its blocks say all; `shared` is what an earlier prompt with the same first block had, too, as far as that is known from the ids."""
    prompt = int(_number(path, number, entry, "input_length", 1, MOST))
    hashes = entry.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise ConfigError(f"{path.name}, line {number}: hash_ids must be a list of integers")
    known = 0
    while known < len(hashes) and seen.get(hashes[known], hashes[0]) == hashes[0] and (known == 0 or hashes[known] in seen):
        known += 1
    for each in hashes:
        seen.setdefault(each, hashes[0])
    return Arrival(
        _number(path, number, entry, "timestamp", 0, MOST_SECONDS * 1e3) / 1e3,
        prompt,
        int(_number(path, number, entry, "output_length", 1, MOST)),
        hashes[0] % 2**31 + 1 if hashes else 0,
        min(prompt, known * CONTENT_BLOCK) if hashes else 0,
        blocks=tuple(hashes[: -(-prompt // CONTENT_BLOCK)]),
    )


def _csv(path: Path, lines: Iterator[str]) -> Iterator[Arrival]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        prompt = _number(path, number, row, "Request tokens", 0, MOST)
        output = _number(path, number, row, "Response tokens", 0, MOST)
        if prompt and output:  # BurstGPT keeps failed requests, with an answer of no tokens
            yield Arrival(_number(path, number, row, "Timestamp", 0, MOST_SECONDS), int(prompt), int(output))


def _number(path: Path, number: int, entry: dict[str, Any], key: str, low: float, high: float, default: float | None = None) -> float:
    value = entry.get(key, default)
    try:
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else float("nan")
    except (ValueError, OverflowError):
        found = float("nan")
    if not low <= found <= high:
        raise ConfigError(f"{path.name}, line {number}: {key} is {value!r:.40}; a number of {low:g} … {high:g} was expected")
    return found


def read_steps(path: Path) -> list[tuple[int, int, float]]:
    """(tokens computed, positions looked back at, seconds) of each step of a jsonl step log. Raises ConfigError."""
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                entry = _object(path, number, line)
                found.append((
                    int(_number(path, number, entry, "tokens", 1, MOST)),
                    int(_number(path, number, entry, "cached", 0, MOST * 4096)),
                    _number(path, number, entry, "seconds", 0, 3600),
                ))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start}); give a jsonl step log") from None
    return found
