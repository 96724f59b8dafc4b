"""What becomes of open requests when their engine ends: what was delivered is never asked for again, what was asked is never lost."""

from typing import Any

import pytest

from ridgeline.core.commands import Abort, Admit, Close, Delivered, Output
from ridgeline.core.events import Admitted as AdmittedEvent
from ridgeline.core.events import Closed, Event, Finish, Preempted, PrefixHit, Started, Usage
from ridgeline.core.params import Admitted
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.messages import Frame, FrameBuffer, encode
from ridgeline.engine.open_requests import OpenRequests
from ridgeline.engine.streams import MAX_UNREAD_OUTPUTS
from ridgeline.errors import EngineDeadError, RequestError

SCORE = TokenLogprobs(-1.0, ())


class Setting:
    def __init__(self, *requests: Admitted) -> None:
        self.told: list[Event] = []
        self.open = OpenRequests(self.told.extend, lambda: 9.0)
        self.open.on_ready(b"weights")
        self.streams = [self.open.add(each, None) for each in requests]
        self.sent = list(self.open.admissions())

    def frame(self, *outputs: Output, events: tuple[Event, ...] = ()) -> None:
        self.open.deliver(Frame(1, 0.0, outputs, events))

    def engine_ends(self) -> list[Admit]:
        self.open.engine_lost()
        return list(self.open.admissions())


def request(name: str = "r", **fields: Any) -> Admitted:
    return Admitted(name, (1, 2, 3), 50, 7, **fields)


def test_a_continuation_has_what_was_delivered_and_survives_the_wire() -> None:
    whole = request(choices=3, two_phase=True, prompt_logprobs=0)
    setting = Setting(whole, request("waits"))
    assert setting.sent == [Admit(whole), Admit(request("waits"))]
    begun = (AdmittedEvent("r", 0.0, 3, 3, 0.0), PrefixHit("r", 0, 2), Started("r", 0, 0, 0.0, False), Started("r", 1, 1, 0.0, False))
    setting.frame(Output("r", 0, (), prompt_logprobs=(SCORE, SCORE)), Output("r", 0, (5, 6)), Output("r", 1, (8,)), events=begun)
    setting.frame(Output("r", 0, (7,)), events=(Preempted("r", 0, "x", "blocks"), PrefixHit("r", 0, 1), Started("r", 0, 0, 0.0, True)))
    setting.frame(Output("r", 1, (9,), end=Finish.LENGTH), events=(Closed("r", 1, Finish.LENGTH, Usage(3, 2), 1.0),))
    continued, fresh = setting.engine_ends()
    assert continued == Admit(whole, (Delivered(0, (5, 6, 7), 2, 2), Delivered(2)))
    assert fresh == Admit(request("waits"), (Delivered(0),))
    assert FrameBuffer().feed(encode(continued)) == [continued]
    assert [stream.continued for stream in setting.streams] == [1, 1] and not setting.told


def test_a_request_that_nobody_read_has_one_end_where_its_engine_ends_first() -> None:
    """The engine told of one choice; the next engine is not given the request."""
    setting = Setting(request(choices=2))
    for _ in range(MAX_UNREAD_OUTPUTS + 1):
        setting.frame(Output("r", 0, (5,)), Output("r", 1, (6,)))
    assert not len(setting.open) and not setting.told, "the engine will tell"
    setting.frame(events=(Closed("r", 1, Finish.ABORT, Usage(3, 1), 1.0),))
    assert setting.engine_ends() == []
    (told,) = setting.told
    assert isinstance(told, Closed) and (told.request_id, told.choice, told.reason, told.time) == ("r", 0, Finish.ABORT, 9.0)
    assert setting.engine_ends() == [] and len(setting.told) == 1


def test_what_an_engine_did_not_confirm_is_carried_out() -> None:
    setting = Setting(request("stops", two_phase=True, choices=2), request("gone"), request("ended", two_phase=True))
    setting.frame(*(Output(name, 0, (4, 5, 6)) for name in ("stops", "gone")), Output("ended", 0, (4,), end=Finish.STOP))
    assert not setting.open.close(Close("stops", 0, 2, Finish.STOP)) and not setting.open.abort(Abort("gone")), "the engine's to do"
    (continued,) = setting.engine_ends()
    assert continued == Admit(setting.streams[0].request, (Delivered(1),))
    assert setting.told == [
        Closed("stops", 0, Finish.STOP, Usage(3, 2), 9.0), Closed("gone", 0, Finish.ABORT, Usage(3, 3), 9.0),
    ]  # fmt: skip
    assert setting.open.close(Close("ended", 0, 0, Finish.STOP)), "its reader had not come to its end"
    assert setting.told[-1] == Closed("ended", 0, Finish.STOP, Usage(3, 0), 9.0) and setting.streams[2].is_ended
    assert len(setting.open) == 1 and setting.open.choices == {"": 1}
    setting.open.engine_lost()
    assert setting.open.abort(Abort("stops")) and len(setting.open) == 0 and setting.open.choices == {}


def test_an_abort_ends_choices_that_only_a_lost_engine_knew() -> None:
    setting = Setting(request(two_phase=True, choices=2))
    setting.frame(Output("r", 0, (4,), end=Finish.STOP), Output("r", 1, (5,)))
    assert setting.engine_ends() == [Admit(setting.streams[0].request, (Delivered(1, (5,)),))]
    assert not setting.open.abort(Abort("r")), "the other choice is the engine's to end"
    assert setting.told == [Closed("r", 0, Finish.ABORT, Usage(3, 1), 9.0)]
    setting.frame(events=(Closed("r", 1, Finish.ABORT, Usage(3, 1), 9.0),))
    assert not len(setting.open) and setting.open.choices == {}


def test_suspects_come_one_at_a_time_and_the_fourth_end_names_one() -> None:
    setting = Setting(*map(request, "abc"))
    setting.engine_ends()
    (first,) = setting.engine_ends()
    assert first.request.request_id == "a" and setting.open.has_suspect, "all have got no further in two engines"
    setting.frame(Output("a", 0, (4,)))
    assert [each.request.request_id for each in setting.open.admissions()] == ["b"]
    assert not list(setting.open.admissions())
    setting.open.engine_lost()
    assert [each.request.request_id for each in setting.open.admissions()] == ["a", "b"]
    setting.frame(Output("a", 0, (4,)))
    setting.open.engine_lost()
    with pytest.raises(RequestError, match="got no further"):
        _ = setting.streams[1].pop()
    assert [(event.request_id, event.reason) for event in setting.told if isinstance(event, Closed)] == [("b", Finish.ERROR)]
    assert [each.request.request_id for each in setting.open.admissions()] == ["a", "c"], "a got further, c had no part in it"
    setting.frame(Output("c", 0, (4,)))
    assert not list(setting.open.admissions()) and not setting.open.has_suspect


def test_who_only_waited_is_hardly_blamed() -> None:
    setting = Setting(request("runs"), request("waits"))
    heard = tuple(AdmittedEvent(name, 0.0, 3, 1, 0.0) for name in ("runs", "waits"))
    for _ in range(7):
        setting.frame(Output("runs", 0, (4,)), events=(*heard, Started("runs", 0, 0, 0.0, False)))
        assert len(setting.engine_ends()) == 2


def test_other_weights_end_what_was_open() -> None:
    setting = Setting(request())
    setting.open.engine_lost()
    setting.open.on_ready(b"other weights")
    assert not list(setting.open.admissions())
    with pytest.raises(EngineDeadError, match="weights have changed"):
        setting.streams[0].pop()
