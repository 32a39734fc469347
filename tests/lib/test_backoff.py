"""How long to wait between tries."""

from crrd.lib.backoff import Backoff


def test_delays_grow_to_the_maximum() -> None:
    plain = Backoff(initial=0.5, factor=2, maximum=3, jitter=0)
    delays = plain.delays()
    assert [next(delays) for _ in range(5)] == [0.5, 1, 2, 3, 3]
    assert 0.5 <= Backoff(0.5, 2, 3, 0.1).delay(1) <= 0.55
    assert plain.delay(100_000) == 3
