"""Admits what a body asks for and starts it: choices that are sampled side by side, the best of many, or a beam search.

Owns which of these it is. Nothing is awaited between admission and submission: who comes next finds this request in the queue.
"""

from collections.abc import Sequence

from ridgeline.core.params import SamplingParams
from ridgeline.server import wire
from ridgeline.server.generate import Generation, Source
from ridgeline.server.service import Service


def start(
    service: Service,
    asked: wire.GenerationRequest,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    stop_ids: frozenset[int] = frozenset(),
) -> Source:
    """`stop_ids` end a sequence as EOS does. Raises RequestError, OverloadedError, EngineDeadError; then nothing has been submitted."""
    admitted = service.admit(prompts, params, priority=asked.priority or 0, salt=asked.cache_salt or "", stop_ids=stop_ids)
    return Generation(service.engine, service.model.tokenizer, admitted, params)
