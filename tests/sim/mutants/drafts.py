"""Planted bugs around speculative drafts: (name, what it is modelled on, edits); an edit is (function, text, text instead).

Some are the executor's: the simulated one stands for every sampler that walks a row.
"""

BUGS = (
    (
        "blocks are published past a rejected draft",
        "drafts: only kept ids advance",
        [("_verified", "count - samples + kept", "count")],
    ),
    (
        "drafted positions count as scheduled",
        "drafts: law 4 counts certain positions",
        [("add_drafts", "sequence.draft(drafted)", "sequence.scheduled += drafted")],
    ),
    (
        "windows are released from the longest outcome",
        "drafts: windows release from the least outcome",
        [
            (
                "lay_drafts",
                "count = preemptor.allocatable_drafts(sequence, count)",
                "sequence.scheduled += count; preemptor.cache.free_out_of_window(sequence); sequence.scheduled -= count; "
                "count = preemptor.allocatable_drafts(sequence, count)",
            )
        ],
    ),
    (
        "the history is not pushed between positions",
        "drafts: penalties over known ids and drafts before",
        [("_sample_row", "position + 1, resident.past)", "position + 1, resident.past and resident.ids[: begin + 1])")],
    ),
    (
        "a stop id among kept ids does not end",
        "drafts: vLLM keeps all accepted ids",
        [("_accepted_length", "(token in sequence.stop_ids and outputs + length > min_tokens) or ", "")],
    ),
    (
        "min_tokens is looked at for a row, not for each of its ids",
        "drafts: min_tokens by row",
        [("_accepted_length", "outputs + length > min_tokens", "outputs + 1 > min_tokens")],
    ),
    (
        "a NaN at a rejected position fails the row",
        "drafts: behind a rejection nothing counts",
        [("advance", "if self.nan_at < end - drafts:", "if True:")],
    ),
    (
        "ids before a NaN are lost",
        "drafts: ids go out, then the error",
        [("_verified", "if kept > 1:", "sampled = sampled if finite else ()\n        if kept > 1:")],
    ),
    (
        "drafted positions stay ahead after the commit",
        "drafts: a pointer that is not cut",
        [("_verified", "sequence.draft(1 - samples)", "pass")],
    ),
    (
        "what is kept for the first position serves for all",
        "drafts: a screened head with one bound for a row",
        [("_sample_row", "position + 1, resident.past)", "begin + 1, resident.past)")],
    ),
    (
        "log-probabilities are those of the first position",
        "drafts: log-probabilities of the wrong position",
        [("_logprobs", "resident.chain[begin + index]", "resident.chain[begin]")],
    ),
    (
        "log-probabilities of ids behind the end shift those before",
        "drafts: log-probabilities of the wrong position",
        [("_verified", "logprobs[:kept]", "logprobs[-kept:]")],
    ),
    (
        "a draft pushes another sequence out",
        "drafts: they cost nobody anything",
        [
            (
                "allocatable_drafts",
                "available = self.available_blocks(sequence) - groups * len(self.lifecycle.running)",
                "self._ensure_blocks(groups, sequence, PlanBuilder(0, 0)); available = self.available_blocks(sequence)",
            )
        ],
    ),
    (
        "a step is planned behind one that drafts",
        "drafts: a barrier",
        [("_must_wait", "if self.steps_in_flight[-1].is_barrier:", "if False:")],
    ),
    (
        "a draft follows an id that is not known yet",
        "drafts: a host draft follows a known id",
        [("lay_drafts", "below_limit > 0 and sequence.in_flight <= most_in_flight", "below_limit > 0")],
    ),
    (
        "a draft is verified behind the last allowed token",
        "drafts: d is at most limit - known - 1",
        [("lay_drafts", "min(sequence.limit - sequence.target - sequence", "min(sequence.limit - sequence.target + 1 - sequence")],
    ),
    (
        "drafts are not charged to what prompts may cost",
        "drafts: they come from what is left",
        [("lay_drafts", "builder.sample_count, prefill_left)", "builder.sample_count)")],
    ),
    (
        "drafts sample beyond the rows of logits",
        "drafts: law 5 bounds samples",
        [("sample_count", "return len(self.sequences) -", "return 1 + 0 * len(self.sequences) -")],
    ),
    (
        "what the draft model computed behind a rejection stays",
        "draft model: a pointer that is not cut",
        [("on_commit", "+ min(span.drafts, len(sampled)) - 1", "+ span.drafts - 1")],
    ),
    (
        "a preempted sequence keeps its place in the draft model",
        "draft model: rows come and go",
        [
            (
                "_forget_ended",
                "each.state is not State.RUNNING or each.preemptions != row.preemptions",
                "each.state > State.RUNNING",
            )
        ],
    ),
    (
        "a block of the draft model is freed twice",
        "draft model: a pool of its own",
        [("_release", "self._rows.pop(sequence).blocks", "self._rows.pop(sequence).blocks * 2")],
    ),
    (
        "the draft model catches up over the budget",
        "draft model: prompts under the same budget",
        [("spans", "row.computed + tokens", "row.computed + 1000")],
    ),
    (
        "a row drafts that the draft model has not caught up with",
        "draft model: catch up first",
        [("propose", "row.wants = depth > 0 and backlog > MAX_BACKLOG", "row.computed = max(row.computed, len(sequence.known) - 1)")],
    ),
    (
        "drafts of another row are held against the samples",
        "draft model: ids by row",
        [("_drafted", "ids = by_row[row]", "ids = next(iter(by_row.values()))[:1] * len(by_row[row])")],
    ),
    (
        "a row behind its drafts is planned as if none were accepted",
        "late binding: the plan says which rows are open",
        [("schedule", "builder.open = bytes([sequence.drafted for sequence in sequences])", "pass")],
    ),
    (
        "blocks of a row behind its drafts cover the least outcome",
        "late binding: blocks cover the most",
        [
            ("set_capacity", "min(positions, self.limit - 1) - self.drafted", "min(positions, self.limit - 1)"),
            ("draft", "self.fast_path_limit -= positions", "pass"),
        ],
    ),
    (
        "the draft model does not compute the last draft that came true",
        "late binding: the id before the last once more",
        [("_draft", "(len(ids) - 2, ids[-2:]) if open", "(len(ids) - 1, ids[-1:]) if open")],
    ),
)
