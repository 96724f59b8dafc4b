"""Streams through a router, and what is the same of two that differ in times, ids and how choices take turns."""

import json
import re
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

ID = re.compile(r"[a-z]{1,8}[-_][0-9a-f]{24,36}\b")
CHOICE = re.compile(r'"choices":\[\{"index":(\d)')
TIME = re.compile(r'("(?:created|created_at|completed_at|\w+_duration)":)(?:\d+|"[^"]*")|("timings":)\{[^}]*\}')


def events(url: str, path: str, body: dict[str, Any], on_event: Callable[[], None] = lambda: None, key: str = "") -> str:
    """The whole stream, without lines that keep the connection."""
    connection = HTTPConnection(url.partition("://")[2], timeout=60)
    try:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
        answer = connection.getresponse()
        lines = []
        while line := answer.readline():
            assert answer.status == 200, line
            lines.append(line.decode())
            on_event()
        return "".join(lines).replace(": keep-alive\n\n", "").replace("\n ", "\n")
    finally:
        connection.close()


def alike(stream: str) -> str:
    """A stream without times, with the ids of each answer by the order in which they come, and one choice behind the other."""
    found: dict[str, str] = {}
    told = ID.sub(lambda each: found.setdefault(each[0], f"id {len(found)}"), TIME.sub(r"\1\2", stream)).split("\n\n")
    return "\n\n".join(sorted(told, key=lambda event: (found := CHOICE.search(event)) is not None and int(found[1])))
