"""Planted bugs in the life of blocks: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "a block is freed while a step in flight may touch it",
        "T3: vLLM#45357, #32255, vllm-ascend#14055",
        [("_let_go", "if sequence.in_flight:", "if False:")],
    ),
    (
        "blocks handed to a step in flight never come back",
        "T4: vLLM#46283",
        [("committed", "self._drop(block_id)", "pass")],
    ),
    (
        "a block is let go one position before its window has passed",
        "T8: vLLM#8268",
        [("release_behind", "first_seen(window, sequence.scheduled)", "first_seen(window, sequence.scheduled + 1)")],
    ),
    (
        "a second holder is not counted",
        "T3: SGL#21652",
        [("hold", "self.holders[block_id] += 1", "self.holders[block_id] = 1")],
    ),
    (
        "a cached block that is held again stays evictable",
        "T3: vLLM#48085",
        [("hold", "del self.cached[block_id]", "pass")],
    ),
    (
        "a block is handed out twice",
        "T3: vllm-ascend#13501",
        [("take", "del free[-count:]", "pass")],
    ),
    (
        "a block is free although one still holds it",
        "T3: tpu-inference#3449",
        [("drop", "if self.holders[block_id] > 0:", "if self.holders[block_id] > 1:")],
    ),
    (
        "a request that its client ends leaks its blocks",
        "T5: vLLM#49146",
        [("_stop", "self.cache.release(sequence)", "len(sequence.known) < sequence.limit or self.cache.release(sequence)")],
    ),
)
