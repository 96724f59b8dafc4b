"""Planted bugs in who runs, when and from where: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "a preempted sequence keeps what was scheduled",
        "T6: vLLM#28558",
        [("free", "sequence.computed = sequence.scheduled = sequence.drafted = 0", "sequence.computed = sequence.drafted = 0")],
    ),
    (
        "positions are off by one after a resumption",
        "T6: vllm-ascend#11334",
        [("attach_prefix", "= sequence.scheduled = blocks * size", "= sequence.scheduled = blocks * size + (sequence.preemptions > 0)")],
    ),
    (
        "a second victim falls though blocks are coming",
        "T4: vllm-ascend#16315",
        [("_ensure_blocks", "if self.available_blocks(sequence) + pending >= blocks:", "if False:")],
    ),
    (
        "the oldest falls first",
        "T4: SGL#21652",
        [("_victims", "in reversed(running[1:]):", "in running:")],
    ),
    (
        "a sequence is preempted without bound",
        "T4: vllm-ascend#16315",
        [("_victims", "if candidate not in self.lifecycle.pinned:", "if True:")],
    ),
    (
        "more is reserved than the worst case",
        "row 10: an operator's memory stands empty while requests wait",
        [("will_fit", " or sum(map(self.most_to_come, sequences)) <= available", "")],
    ),
    (
        "who is late goes first, and makes others late",
        "earliest deadline first in overload: Buttazzo, Spuri, Sensini 1995",
        [("_demote_late", "sequence.can_be_late = False", "continue")],
    ),
    (
        "a long prompt is taken to need no time",
        "least slack: the deadline less what is still to be done",
        [("latest_start", "- round(1e6 * token * len(request.prompt))", "")],
    ),
    (
        "a tenant that floods takes the slack of others",
        "row 11: fairness under every policy",
        [("lead", "(tag - self._now) // UNIT", "0")],
    ),
    (
        "a stream's own bound between two tokens counts for nothing",
        "generation stalls: Agrawal et al. 2024 (Sarathi-Serve)",
        [("_prefill_left", "self.pace.tokens_within([s.request.itl_ms for s in compress(running, decodes)])", "None")],
    ),
    (
        "the token budget is exceeded by one",
        "T8: vLLM#51094",
        [("budget_left", "return self.budget - len(self.tokens)", "return self.budget - len(self.tokens) + 1")],
    ),
    (
        "a long prompt delays everyone's next token",
        "generation stalls: Agrawal et al. 2024 (Sarathi-Serve)",
        [("_prefill_left", "self.limits.prefill_budget(decode_rows, itl_tokens)", "self.limits.prefill_budget(0)")],
    ),
    (
        "each of two prompts has what both may have together",
        "generation stalls: Agrawal et al. 2024 (Sarathi-Serve)",
        [("add", "self.prefill_left -= count", "pass")],
    ),
    (
        "the latest arrival runs first",
        "section 1.14: vLLM#2901",
        [("admit", "sequence.rank = self.policy.rank(sequence)", "sequence.rank = (-sequence.number,)")],
    ),
    (
        "a tenant that was idle has saved up its share",
        "Goyal, Vin, Cheng 1997: without virtual time a tag lies in the past",
        [("tag", "max(self._now, account.charged, account.last)", "max(account.charged, account.last)")],
    ),
    (
        "a weight counts for nothing",
        "section 1.14: shares by weight",
        [("tag", "// request.weight", "")],
    ),
    (
        "what a sequence has really cost is forgotten",
        "VTC (Sheng et al. 2024) charges tokens as they are served",
        [("settle", "account.charged += true // request.weight - sequence.charge", "pass")],
    ),
    (
        "virtual time stands still",
        "Goyal, Vin, Cheng 1997",
        [("on_start", "self._now = max(self._now, tag)", "pass")],
    ),
    (
        "a request that needs many blocks is overtaken by small ones",
        "T23: vLLM#2901",
        [("_start", 'len(self.lifecycle.running)\n        builder.close_starts("blocks")', "0")],
    ),
    (
        "a request that can never fit is accepted",
        "T23",
        [("rejection_reason", "if needed > shape.blocks:", "if False:")],
    ),
    (
        "a row is given away while a step in flight writes to it",
        "T3: vLLM#45357",
        [("preempt", "self.add_wait(victim, Wait.DRAIN, None)", "self.add_wait(victim, Wait.DRAIN, None) or self._free_row(victim)")],
    ),
    (
        "a long last chunk does not sample",
        "T8: vLLM#3251",
        [
            (
                "add",
                "samples = end == sequence.target",
                "samples = end == sequence.target and count < 9",
            )
        ],
    ),
)
