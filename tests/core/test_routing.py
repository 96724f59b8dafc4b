"""Policies of routers that know what caches have, and the map by which they know it."""

from ridgeline.core.routing import ROUTING, SESSION_REQUESTS, PrefixMap, ReplicaLoad, RoutedRequest, with_affinity

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


def test_a_session_stays_until_its_replica_bears_far_more_than_others() -> None:
    choose, loads = with_affinity(ROUTING["least-requests"]), [ReplicaLoad(number) for number in range(4)]
    homes = {name: choose(loads, RoutedRequest(0, 10, b"", session=name), 0.0).number for name in (b"%d" % each for each in range(40))}
    assert set(homes.values()) == set(range(4))
    home = homes[b"0"]
    loads[home].requests = SESSION_REQUESTS
    assert choose(loads, RoutedRequest(0, 10, b"", session=b"0"), 0.0).number == home
    loads[home].requests = 4 * SESSION_REQUESTS
    assert choose(loads, RoutedRequest(0, 10, b"", session=b"0"), 0.0).number != home
    left = [load for load in loads if load.number != home]
    moved = {name for name, was in homes.items() if choose(left, RoutedRequest(0, 10, b"", session=name), 0.0).number != was}
    assert moved == {name for name, was in homes.items() if was == home}, "no other session moves with a replica that goes"


def test_a_request_goes_where_its_adapter_is_loaded() -> None:
    choose = with_affinity(ROUTING["least-requests"])
    loads = [ReplicaLoad(0), ReplicaLoad(1, 5, names=frozenset({"fr"})), ReplicaLoad(2, 4, names=frozenset({"de", "fr"}))]
    found = {name: choose(loads, RoutedRequest(0, 10, b"", model=name), 0.0).number for name in ("fr", "base:fr", "de", "base", "it", "")}
    assert found == {"fr": 2, "base:fr": 2, "de": 2, "base": 0, "it": 0, "": 0}
    assert choose(loads, RoutedRequest(0, 10, b"", model="de", session=b"any"), 0.0).number == 2


def test_a_model_is_asked_where_it_is_loaded_until_that_is_too_much() -> None:
    choose, names = with_affinity(ROUTING["least-requests"]), frozenset({"a", "b"})
    loads = [ReplicaLoad(0, 1, names=names, unloaded=frozenset({"b"})), ReplicaLoad(1, 6, names=names), ReplicaLoad(2)]
    asked = {name: RoutedRequest(0, 10, b"", model=name) for name in "ab"}
    assert choose(loads, asked["a"], 0.0).number == 0 and choose(loads, asked["b"], 0.0).number == 1
    loads[1].requests = 40
    assert choose(loads, asked["b"], 0.0).number == 1, "the mean follows"
    loads[1].requests, loads[0].requests = 60, 20
    loads += [ReplicaLoad(number, 20, names=names, unloaded=frozenset({"b"})) for number in range(3, 9)]
    assert choose(loads, asked["b"], 0.0).number == 0, "another one loads it"
    for load in loads:
        load.unloaded = names
    assert choose(loads, asked["b"], 0.0).number == 0, "somebody has to"
