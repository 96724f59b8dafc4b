"""The request router of `deploy/ray_serve.py`, with a log: each choice and each request that was taken, as a line of JSON.

RIDGELINE_RAY_RECORD names the file. What is about to cross the handle is looked at too: pickled, it must name no class or function.
"""

import json
import os
import pickle
import pickletools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica
from ray_routing import PolicyRouter

GLOBALS = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "REDUCE", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
"""Instructions of a pickle that name what is called, or call it."""


def is_plain(value: object) -> bool:
    """True for what any program may read: a pickle of it calls nothing."""
    return not GLOBALS & {code.name for code, _, _ in pickletools.genops(pickle.dumps(value, protocol=5))}


class Recording(PolicyRouter):
    """`PolicyRouter`, which writes down what it does."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Sequence[list[RunningReplica]]:
        """The choice, written down."""
        await super().choose_replicas(candidate_replicas)  # so that all of them have numbers
        known = [self._loads[each.replica_id] for each in candidate_replicas]
        before = sorted((load.number, load.requests, load.waiting_tokens, load.held_tokens) for load in known)
        found = await super().choose_replicas(candidate_replicas, pending_request)
        if pending_request is not None and found:
            prompt, _, scope, _ = pending_request.args
            own = dict(scope["headers"]).get(b"x-request-id", b"").decode()
            chosen, crosses = self._loads[found[0][0].replica_id].number, (*pending_request.args, pending_request.kwargs)
            write(what="chosen", request=own, replica=chosen, tokens=prompt[0], plain=is_plain(crosses), loads=before)
        return found

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Written down."""
        super().on_request_routed(pending_request, replica_id, result)
        own = dict(pending_request.args[2]["headers"]).get(b"x-request-id", b"").decode()
        write(what="taken", request=own, replica=self._loads[replica_id].number, type=type(result).__name__)


def recording(engine: type) -> type:
    """The class of an engine, which writes down whether what it answers is plain."""

    class Engine(engine):  # type: ignore[misc]
        async def answer(self, *arguments: Any) -> AsyncIterator[Any]:
            plain, types = True, set[str]()
            try:
                async for part in super().answer(*arguments):
                    plain &= is_plain(part)
                    types.add(type(part).__name__)
                    yield part
            finally:
                write(what="answered", request="", plain=plain, types=sorted(types))

    return Engine


def write(**told: Any) -> None:
    """Adds a line."""
    if path := os.environ.get("RIDGELINE_RAY_RECORD"):
        with open(path, "a") as file:
            file.write(json.dumps(told) + "\n")
