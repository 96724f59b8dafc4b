"""Planted bugs in what a client gets: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "an abort of a waiting request is lost",
        "T5: SGL#36552, #20623",
        [("abort", "self._stop(sequence)", "if sequence.state is State.WAITING:\n            continue\n        self._stop(sequence)")],
    ),
    (
        "tokens are counted again after a preemption",
        "T19: vLLM#8625, #9357",
        [("_close", "Usage(sequence.prompt_tokens, keep,", "Usage(sequence.prompt_tokens, keep + (sequence.preemptions > 0),")],
    ),
    (
        "a second close counts again",
        "T4: vLLM#46240",
        [("_close", "if not choices:", "choices[sequence.choice] = sequence\n    if not choices:")],
    ),
    (
        "a provisional end never closes",
        "T11: vLLM#45636",
        [("close", "if sequence is not None:", "if sequence is not None and sequence.state is not State.ENDED:")],
    ),
    (
        "ids beyond a stop string are charged",
        "T11: vLLM#51641, T19: vLLM#9028",
        [("close", "max(0, min(keep, sequence.outputs))", "sequence.outputs")],
    ),
    (
        "the sampler is not told of min_tokens",
        "T22",
        [("row_params", "min_tokens=self.min_tokens,", "min_tokens=0,")],
    ),
    (
        "a stop id is missed at the first position that allows it",
        "T22",
        [("finish_reason", "sequence.outputs > sequence.request.min_tokens", "sequence.outputs > sequence.request.min_tokens + 1")],
    ),
    (
        "the sampler is not told what is asked of it",
        "T7: vLLM#5639",
        [("row_params", "sampling=self.sampling,", "sampling=Sampling(logprobs=self.sampling.logprobs),")],
    ),
    (
        "a prompt is scored again after a preemption",
        "T8: vLLM#5344",
        [("_score", "sequence.scored - start, upto - sequence.scored", "0, upto - start")],
    ),
    (
        "scores that a preempted sequence still had in flight are lost",
        "T6: vLLM#5349",
        [("_emit_scores", "in (State.RUNNING, State.WAITING)", "is State.RUNNING")],
    ),
    (
        "a prompt that is to be scored is taken from the prefix cache",
        "T8: vLLM#5344",
        [("reusable", "most if self.scored >= self.to_score else min(self.scored, most)", "most")],
    ),
    (
        "an answer that goes on in another engine begins anew",
        "none: engines elsewhere fail what was open",
        [("continue_behind", "self.known += delivered.ids", "pass")],
    ),
    (
        "sibling choices draw the same noise",
        "T15: vLLM#11898, T13: vLLM#50440",
        [("row_params", "choice=choice,", "choice=0,")],
    ),
    (
        "ids are emitted after the end",
        "T11: vmlx-swift#109",
        [
            (
                "_commit_stopped",
                "if sequence.state is State.WAITING and sampled:",
                "if sampled and (sequence.state is State.WAITING or "
                "(len(sequence.known) + 1 < sequence.limit and sampled[0] not in sequence.stop_ids)):",
            )
        ],
    ),
    (
        "ids that a preempted sequence still had in flight are lost",
        "T6: vLLM#5349",
        [("_commit_stopped", "sequence.known += sampled", "return")],
    ),
    (
        "a late result goes to whoever has the row now",
        "T15: vLLM#16863",
        [
            (
                "commit",
                "else:\n        rows = zip(sequences,",
                "else:\n        rows = zip([next((s for s in lifecycle.running if s.row == r), o) for r, o in zip(plan.row, sequences)],",
            ),
            ("_stop", "if not sequence.in_flight:", "if True:"),
        ],
    ),
    (
        "log-probabilities of a sequence's last token are lost",
        "T9: vLLM#17876",
        [("_emit_ids", "sampled, logprobs, reason", "sampled, None, reason")],
    ),
    (
        "the last of several commands is lost",
        "T16: vLLM#10583",
        [("turn", "self.scheduler.apply(commands,", "self.scheduler.apply(commands[:3],")],
    ),
    (
        "outputs of a large step are cut",
        "T15: vLLM#11898",
        [("turn", "ticket.plan, result, self.clock.now())", "ticket.plan, result, self.clock.now())[:8]")],
    ),
)
