"""Planted bugs in the life of blocks: (name, what it is modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "a block is freed while a step in flight may touch it",
        "T3: vLLM#45357, #32255, vllm-ascend#14055",
        [("_release_holds", "if sequence.in_flight:", "if False:")],
    ),
    (
        "blocks handed to a step in flight never come back",
        "T4: vLLM#46283",
        [("release_step", "self._drop(block_id)", "pass")],
    ),
    (
        "a block is let go one position before its window has passed",
        "T8: vLLM#8268",
        [("free_out_of_window", "first_visible_block(window, sequence.scheduled)", "first_visible_block(window, sequence.scheduled + 1)")],
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
        [("allocate", "del free[-count:]", "pass")],
    ),
    (
        "a block is free although one still holds it",
        "T3: tpu-inference#3449",
        [("drop", "if self.holders[block_id] > 0:", "if self.holders[block_id] > 1:")],
    ),
    (
        "a request that its client ends leaks its blocks",
        "T5: vLLM#49146",
        [("_stop", "self.cache.free(sequence)", "len(sequence.known) < sequence.limit or self.cache.free(sequence)")],
    ),
)
