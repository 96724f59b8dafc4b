"""One choice of a request at the edge: outputs of the engine in, what may be shown out, and the close that the engine waits for.

Owns the two-phase end of requests with stop strings, for every protocol and for the in-process `LLM`. The engine counts usage, from `keep`.
"""

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.text.stop import StopAutomaton
from ridgeline.text.stream import OutputStream, Release
from ridgeline.text.tokenizer import Tokenizer


class Choice:
    """Feed it every `Output` of its choice, in order. Done when the engine's `Closed` arrives; `stop_reason` is then final."""

    def __init__(self, request: Admitted, choice: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._request_id = request.request_id
        self._choice = choice
        self._two_phase = request.has_stop_strings
        self._client_stop_ids = frozenset(params.stop_token_ids)
        self._count = 0
        self._over = False
        self.stop_reason: str | int | None = None
        """The stop string, or the client's stop id, that ended the choice; None for EOS and all other ends."""
        self._stream = OutputStream(
            tokenizer,
            StopAutomaton(params.stop),
            prompt=request.prompt,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    def take(self, output: Output) -> tuple[list[Release], Close | None]:
        """What may be shown now, and the close to send, at most once. Outputs after that close are nobody's."""
        if self._over:
            return [], None
        self._count += len(output.ids)
        releases = [self._stream.push(output.ids, output.logprobs, ends_with_stop_id=output.end is Finish.STOP)]
        if output.end is not None and self._stream.stopped is None:
            releases.append(self._stream.finish())
        stopped = self._stream.stopped
        if stopped is not None:
            self._over, self.stop_reason = True, stopped.stop
            return releases, Close(self._request_id, self._choice, stopped.keep, Finish.STOP)
        if output.end is None:
            return releases, None
        self._over = True
        if output.end is Finish.STOP and output.ids[-1] in self._client_stop_ids:
            self.stop_reason = output.ids[-1]
        return releases, Close(self._request_id, self._choice, self._count, output.end) if self._two_phase else None
