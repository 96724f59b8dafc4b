"""One choice of a request at the edge: outputs of the engine in, what may be shown out, and the close that the engine waits for.

Owns the two-phase end (stop strings, answers without a token), for every protocol and for the in-process `LLM`, and the sum of
log-probabilities. The engine counts usage, from `keep`.
"""

from math import fsum

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.text.stop import StopAutomaton
from ridgeline.text.stream import OutputStream, Release
from ridgeline.text.tokenizer import Tokenizer


class Choice:
    """Feed it every `Output` of its choice, in order. Done when the engine's `Closed` arrives; `stop_reason` is then final.

    prompt_logprobs  of prompt tokens from the second on, so far; complete when the first id comes, empty where they were not asked for
    stop_reason      the stop string, or the client's stop id, that ended the choice; None for EOS and all other ends
    """

    def __init__(self, request: Admitted, choice: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._request_id = request.request_id
        self._choice = choice
        self._two_phase = request.two_phase
        self._shows = params.max_tokens != 0
        self._client_stop_ids = frozenset(params.stop_token_ids)
        self._count = 0
        self._over = False
        self._logprobs: list[float] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.stop_reason: str | int | None = None
        self._stream = OutputStream(
            tokenizer,
            StopAutomaton(params.stop),
            prompt=request.prompt,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of all outputs that count; None where none were made."""
        return fsum(self._logprobs) if self._logprobs else None

    def take(self, output: Output) -> tuple[list[Release], Close | None]:
        """What may be shown now, and the close to send, at most once. Outputs after that close are nobody's."""
        if self._over:
            return [], None
        if output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        if not self._shows:
            return self._drop(output)
        self._count += len(output.ids)
        if output.logprobs:
            self._logprobs += [each.logprob for each in output.logprobs]
        releases = [self._stream.push(output.ids, output.logprobs, ends_with_stop_id=output.end is Finish.STOP)]
        if output.end is not None and self._stream.stopped is None:
            releases.append(self._stream.finish())
        stopped = self._stream.stopped
        if stopped is not None:
            self._over, self.stop_reason = True, stopped.stop
            del self._logprobs[stopped.keep :]
            return releases, Close(self._request_id, self._choice, stopped.keep, Finish.STOP)
        if output.end is None:
            return releases, None
        self._over = True
        if output.end is Finish.STOP and output.ids[-1] in self._client_stop_ids:
            self.stop_reason = output.ids[-1]
        return releases, Close(self._request_id, self._choice, self._count, output.end) if self._two_phase else None

    def _drop(self, output: Output) -> tuple[list[Release], Close | None]:
        """Nothing but the prompt was to be computed: the one output that came of it counts for nothing."""
        if output.end is None:
            return [], None
        self._over = True
        return [], Close(self._request_id, self._choice, 0, output.end if output.end is Finish.ERROR else Finish.LENGTH)
