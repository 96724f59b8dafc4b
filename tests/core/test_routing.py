"""Policies of routers that know what caches have, and the map by which they know it."""

from ridgeline.core.routing import ROUTING, PrefixMap, ReplicaLoad, RoutedRequest

CHAIN = [bytes([each]) * 16 for each in range(8)]


def test_a_prefix_keeps_its_replica_until_others_would_be_faster_without_it() -> None:
    choose = ROUTING["cache-aware"]
    request = RoutedRequest(0, 1_000, b"", {1: 896})
    loads = [ReplicaLoad(0), ReplicaLoad(1, waiting_tokens=800)]
    assert choose(loads, request, 0.0).number == 1
    loads[1].waiting_tokens = 900
    assert choose(loads, request, 0.0).number == 0


def test_weights_divide_loads() -> None:
    loads = [ReplicaLoad(0, 3, 300, 300), ReplicaLoad(1, 4, 400, 400, weight=2.0)]
    for name in ("least-requests", "least-tokens", "cache-aware"):
        assert ROUTING[name](loads, RoutedRequest(0, 100, b""), 0.0).number == 1, name


def test_what_was_sent_is_known_part_by_part() -> None:
    sent = PrefixMap(100)
    sent.learn(CHAIN[:6], 0)
    sent.learn(CHAIN[:3], 1)
    assert sent.match(CHAIN) == {0: 6, 1: 3}
    assert sent.match([b"other", *CHAIN]) == {}
    sent.forget(0)
    assert sent.match(CHAIN) == {1: 3}


def test_the_map_is_bounded_and_forgets_the_oldest_and_the_ends_of_prefixes_first() -> None:
    sent = PrefixMap(6)
    sent.learn(CHAIN[:4], 0)
    sent.learn([b"x" * 16, b"y" * 16, b"z" * 16], 1)
    assert sent.match(CHAIN) == {0: 3}
    assert sent.match([b"x" * 16, b"y" * 16, b"z" * 16]) == {1: 3}
