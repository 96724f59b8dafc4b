"""A fake model that says what it is told to, so that clients are tested with answers of a given form: calls of tools, JSON, reasoning.

Owns the script's meaning. Ids are those of `text.tokenizer.ByteTokenizer`: bytes, and one that ends an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from ridgeline.core.params import Grammar, RowParams
from ridgeline.core.thinking import ThinkingState
from ridgeline.engine.executor import Grammars
from ridgeline.sim.laws.model import FakeModel, depends_on_history

END: Final = 257


class LostGrammar(Exception):
    """A row's grammar cannot go on."""


class RowGrammar(Protocol):
    """A row's place in the grammar that its output follows."""

    def allowed(self) -> Sequence[int]:
        """Ids that may come next, ascending."""
        ...

    def advance(self, ids: Sequence[int]) -> None:
        """Takes ids that the row has sampled."""
        ...


class GrammarCompiler(Grammars, Protocol):
    """Compiles grammars, and gives rows their places in them."""

    def start(self, grammar: Grammar, ids: Sequence[int]) -> RowGrammar:
        """The place behind `ids`, a row's outputs so far. The grammar has been compiled."""
        ...

    def close(self) -> None:
        """Frees what it holds. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptedModel(FakeModel):
    """Answers by the text that stands last in the prompt; an answer is a function of the prompt alone, whatever came before it.

    script  (after, answer): the entry counts whose `after` ends nearest to the prompt's end, of several the longest

    A prompt that has none of these texts gets the answer of `FakeModel`.
    """

    reads_ids: ClassVar[bool] = True

    script: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        entries = [each for each in self.script if len(each) == 2 and all(isinstance(text, str) for text in each) and each[0]]
        if len(entries) < len(self.script):
            raise ValueError('script has pairs of texts, [["what the prompt ends with", "the answer"]]')

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        """The next byte of the answer, or its end; what a request bans is replaced as in `FakeModel`."""
        prompt = bytes(token for token in (past or ())[: params.prompt_tokens] if token < 256)
        said, at = self._answer(prompt), position - params.prompt_tokens
        thinking = params.sampling.thinking
        if said is not None and past is not None and thinking is not None:
            outputs = past[params.prompt_tokens :]
            forced = ThinkingState(thinking, outputs).forced
            if forced is not None:
                return forced
            at = _behind_forced(said, bytes(min(each, 255) for each in outputs), bytes(thinking.close[-thinking.mark :]))
        if said is not None:
            token = said[at] if at < len(said) else END
            if at >= params.min_tokens or token not in params.banned_until:
                return token
        return FakeModel.sample(self, stamp, params, position, past if depends_on_history(params.sampling) else None)

    def _answer(self, prompt: bytes) -> bytes | None:
        """The answer to a prompt; None: the script has none."""
        found = [(prompt.rfind(text), len(text), said) for text, said in ((after.encode(), said) for after, said in self.script)]
        return max(((at + size, size, said.encode()) for at, size, said in found if at >= 0), default=(0, 0, None))[2]


def _behind_forced(said: bytes, outputs: bytes, mark: bytes) -> int:
    """The place of the next byte of `said`: behind its own end of the reasoning, where `mark` was forced before that came."""
    end = outputs.find(mark)
    if end < 0 or said.startswith(outputs[: end + len(mark)]):
        return len(outputs)
    return max(0, said.find(mark)) + len(outputs) - end


def followed(grammar: RowGrammar, token: int, stamp: int) -> int:
    """The id itself where the row's grammar takes it, else one that it takes: an end, if there is one. The row goes on behind it.

    Raises LostGrammar where nothing may come next.
    """
    try:
        allowed = grammar.allowed()
    except Exception as error:  # of the library that the compiler brings
        raise LostGrammar(f"the output cannot follow its grammar any further: {error}") from None
    if token not in allowed:
        token = END if END in allowed else allowed[stamp % len(allowed)]
    grammar.advance((token,))
    return token
