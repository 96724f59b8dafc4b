"""Planted bugs in blocks that move to the host and back: (name, modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "what a tier has brought is published and not copied",
        "T8: a hit in a tier whose copy is missing",
        [("land", "self.copies.append((-number, block_id))", "self.unused.append(number)")],
    ),
    (
        "copies are carried out in another order",
        "T3: swaps in before swaps out",
        [("_finish_plan", "self.cache.copies, last.plan", "self.cache.copies[::-1], last.plan")],
    ),
    (
        "a hit on the host is counted and not copied",
        "T8: a hit in a tier whose copy is missing",
        [("_move", "self.copies.append((block_id, to))", "block_id > to or self.copies.append((block_id, to))")],
    ),
    (
        "a block that moves to the host is not copied",
        "T8: a hit in a tier whose copy is missing",
        [("_move", "self.copies.append((block_id, to))", "block_id < to or self.copies.append((block_id, to))")],
    ),
    (
        "a block of the host that is wanted and not fetched after all is lost",
        "T5: a leak of the tier",
        [("_drop", "self.host.put(block_id)", "pass")],
    ),
)
