"""Planted bugs around speculative drafts: (name, what it is modelled on, edits); an edit is (function, text, text instead).

Some are the executor's: the simulated one stands for every sampler that walks a row.
"""

BUGS = (
    (
        "blocks are published past a rejected draft",
        "drafts: only kept ids advance",
        [("_accepted", "counts[index] -= samples - kept", "counts[index] -= 0")],
    ),
    (
        "drafted positions count as scheduled",
        "drafts: law 4 counts certain positions",
        [("add_drafts", "sequence.drafted = len(ids)", "sequence.scheduled += len(ids)")],
    ),
    (
        "windows are released from the longest outcome",
        "drafts: windows release from the least outcome",
        [
            (
                "_add_drafts",
                "cache.allocate(sequence, sequence.scheduled + count)",
                "sequence.scheduled += count; cache.free_out_of_window(sequence); sequence.scheduled -= count; "
                "cache.allocate(sequence, sequence.scheduled + count)",
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
        [("_accepted_length", "(token in sequence.stop_ids and first + length > least) or ", "")],
    ),
    (
        "min_tokens is looked at for a row, not for each of its ids",
        "drafts: min_tokens by row",
        [("_accepted_length", "first + length > least", "first + 1 > least")],
    ),
    (
        "a NaN at a rejected position fails the row",
        "drafts: behind a rejection nothing counts",
        [("advance", "if self.nan_at < end - drafts:", "if True:")],
    ),
    (
        "ids before a NaN are lost",
        "drafts: ids go out, then the error",
        [("_accepted", "taken[index], logprobs = ids[:kept],", "taken[index], logprobs = ids[: kept * result.finite[index]],")],
    ),
    (
        "drafted positions stay ahead after the commit",
        "drafts: a pointer that is not cut",
        [("_accepted", "sequence.drafted = 0", "pass")],
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
        [("_accepted", "shown[index] = logprobs[:kept]", "shown[index] = logprobs[-kept:]")],
    ),
    (
        "a draft pushes another sequence out",
        "drafts: they cost nobody anything",
        [
            (
                "allocatable_drafts",
                "spare = self.available_blocks(sequence) - groups * len(self.lifecycle.running)",
                "self._ensure_blocks(groups, sequence, PlanBuilder(0, 0)); spare = self.available_blocks(sequence)",
            )
        ],
    ),
    (
        "a step is planned behind one that drafts",
        "drafts: a barrier",
        [("_must_wait", "if self.steps_in_flight[-1].barrier:", "if False:")],
    ),
    (
        "a draft follows an id that is not known yet",
        "drafts: a host draft follows a known id",
        [("_add_drafts", "if sequence.in_flight == 1 and index", "if index")],
    ),
    (
        "a draft is verified behind the last allowed token",
        "drafts: d is at most limit - known - 1",
        [("_add_drafts", "sequence.limit - sequence.target) for", "sequence.limit - sequence.target + 1) for")],
    ),
    (
        "drafts are not charged to what prompts may cost",
        "drafts: they come from what is left",
        [("schedule", "builder.sample_count, self._prefill_left(builder))", "builder.sample_count)")],
    ),
    (
        "drafts sample beyond the rows of logits",
        "drafts: law 5 bounds samples",
        [("sample_count", "return len(self.sequences) -", "return 1 + 0 * len(self.sequences) -")],
    ),
)
