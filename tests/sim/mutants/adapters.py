"""Planted bugs in adapters: (name, modelled on, edits); an edit is (function, text, text instead)."""

BUGS = (
    (
        "prefix keys leave out the adapter",
        "T1: two adapters, same prompt",
        [("_identity", '(*scope, b"adapter", adapter.digest)', "scope")],
    ),
    (
        "a slot is free as soon as its row is preempted",
        "a slot is filled while a step in flight reads it",
        [("_unused", "not users[digest] and digest", "digest")],
    ),
    (
        "a row takes a slot that is yet to be filled",
        "weights of another adapter",
        [("take", "SlotFill(slot, digest)", "SlotFill(slot, digest[:-1])")],
    ),
)
