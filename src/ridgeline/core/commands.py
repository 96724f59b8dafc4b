"""Commands into the core, outputs out of it. Plain values; the engine process turns them into frames."""

from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted
from ridgeline.core.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Admit:
    request: Admitted


@dataclass(frozen=True, slots=True)
class Close:
    """The front end's answer to a provisional end, or a stop string found earlier: the first `keep` outputs count."""

    request_id: str
    choice: int
    keep: int
    reason: Finish


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends every choice of a request that is still open, in whatever state."""

    request_id: str


Command = Admit | Close | Abort


class Output(NamedTuple):
    """New ids of one choice, from one committed step. `end` is set when the engine ended the choice in this step;
    in the two-phase close that end is provisional and the front end must answer with `Close`.

    prompt_logprobs  those of the next prompt tokens, from the second on; such an output has no ids
    """

    request_id: str
    choice: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    end: Finish | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
