"""Commands to the core and outputs from it: plain values, which the engine process sends as frames."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted
from ridgeline.core.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Delivered:
    """The part of a choice that has been delivered, behind which it goes on.

    ids            its outputs
    scored         prompt positions whose log-probabilities have been delivered
    cached_tokens  prompt tokens that its first engine took from the prefix cache; None: it has not run yet
    """

    choice: int
    ids: tuple[int, ...] = ()
    scored: int = 0
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """Queues a request. With `delivered` it is a continuation: the engine that had it has ended, and these choices, which had not ended,
    go on behind what has been delivered of them; empty: all choices begin. `fetching`: a tier is asked for blocks of its prompt, which
    `BlocksFetched` answers."""

    request: Admitted
    delivered: tuple[Delivered, ...] = ()
    fetching: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a choice whose first `keep` output tokens count: after a provisional end, or earlier for a stop string."""

    request_id: str
    choice: int
    keep: int
    reason: Finish


@dataclass(frozen=True, slots=True)
class Abort:
    """Closes every open choice of a request, waiting or running."""

    request_id: str


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A grammar has been compiled, or cannot be: requests that wait for it may run, or are rejected with the message."""

    digest: bytes
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterReady:
    """An adapter is in host memory, or cannot be: as `GrammarReady`."""

    digest: bytes
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BlocksFetched:
    """Blocks of a request's prompt that tiers have brought, perhaps none: it waits no longer.

    tier    that brought the most
    blocks  (block of the prompt, KV group, number of the content, by which copies of plans name it), ascending
    """

    request_id: str
    tier: str = ""
    blocks: tuple[tuple[int, int, int], ...] = ()


Knob = Literal["step_ms", "num_speculative_tokens"]


@dataclass(frozen=True, slots=True)
class SetKnob:
    """Changes a setting while the engine runs, from the next plan on; in a recording like any command, so that a replay decides alike.

    step_ms                 milliseconds that a step with decoding rows may take
    num_speculative_tokens  drafts per row and step, at most as many as at the start; 0: none
    """

    name: Knob
    value: int


@dataclass(frozen=True, slots=True)
class PinAdapter:
    """Lets an adapter keep its slot from now on, once it has one; or no longer."""

    digest: bytes
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class TellBlocks:
    """Tells which blocks have which content from now on (`Published`), those first that have some already."""


Command = Admit | Close | Abort | GrammarReady | AdapterReady | SetKnob | PinAdapter | BlocksFetched | TellBlocks


class Output(NamedTuple):
    """New ids of one choice from one committed step.

    end              set if the step ended the choice. In the two-phase close this end is provisional: the front end answers with `Close`
    prompt_logprobs  of the next prompt tokens, from the second on; such an output has no ids
    vector           of a text that was to be pooled, little-endian float32: its only output, which ends it
    """

    request_id: str
    choice: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    end: Finish | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    vector: bytes | None = None
