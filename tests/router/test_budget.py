"""What requests that are sent again may cost."""

from ridgeline.router.budget import FLOOR_PER_SECOND, MOST_SAVED, OWN_SECONDS, SHARE, Budget, Moves


def test_what_is_sent_again_is_a_share_of_the_requests_and_some_per_second() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    assert sum(budget.take() for _ in range(100)) == MOST_SAVED
    for _ in range(25):
        budget.earn()
    assert sum(budget.take() for _ in range(100)) in (25 * SHARE, 25 * SHARE - 1)
    now[0] += 1.0
    assert sum(budget.take() for _ in range(100)) in (FLOOR_PER_SECOND, FLOOR_PER_SECOND + 1)
    now[0] += 1_000.0
    assert sum(budget.take() for _ in range(100)) == MOST_SAVED


def test_a_request_has_a_move_of_its_own_for_a_replica_that_ends() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    moves = [Moves(budget, lambda: now[0]) for _ in range(500)]
    assert all(each.pay(is_loss=True) for each in moves), "however many a replica had"
    assert sum(each.pay(is_loss=True) for each in moves) == MOST_SAVED == 10
    assert not Moves(budget, lambda: now[0]).pay(is_loss=False), "a refusal is paid from the budget"
    now[0] += OWN_SECONDS
    assert all(each.pay(is_loss=True) for each in moves[:100])
