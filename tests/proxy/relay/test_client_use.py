"""framegate.proxy.relay.client_use over real pairs: what each client uses is added up once, while it is open and when it ends."""

from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, TlsError
from framegate.proxy.relay import ending
from framegate.proxy.relay.client_use import ClientUse
from framegate.proxy.relay.frequent import MEASURES
from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import World, frame
from tests.proxy.relay.conftest import passes

ADDRESS = "192.0.2.1"


def used(use: ClientUse) -> dict[str, Any]:
    """What is added up by client without its listener, of the measures that have something; totals are those of the clients."""
    lists, totals = use.take()
    for measure in MEASURES[:-2]:
        assert sum(lists[measure].counts.values()) == totals.get((measure, "l"), 0)
    return {measure: {key[1:]: count for key, count in found.counts.items()} for measure, found in lists.items() if found.counts}


def end(world: World, pair: Any, cause: Cause = Cause.ADMIN, error: Exception | None = None) -> None:
    if error is None:
        ending.abort(pair, cause, "", "internal")
    else:
        pair.client.channel.close(cause, str(error), error)
    world.until(lambda: pair.state.value == "closed")


def test_what_a_connection_passes_is_added_up_once_while_it_is_open_and_when_it_ends(make: Any) -> None:
    world = make()
    use, (client, upstream, pair) = world.relay.pairs.use, world.pair()
    use.see(pair)
    assert used(use) == {}
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    use.see(pair)
    use.see(pair)
    assert used(use) == {"bytes": {("ANONYMOUS", "", ADDRESS): 17}, "frames": {("ANONYMOUS", "", ADDRESS): 2}}
    passes(world, client, upstream, frame(b"more"))
    end(world, pair)
    assert used(use) == {"bytes": {("ANONYMOUS", "", ADDRESS): 8}, "frames": {("ANONYMOUS", "", ADDRESS): 1}}
    assert used(use) == {}


def test_a_client_is_its_principal_its_client_id_and_its_address_without_port(make: Any) -> None:
    world = make("kafka")
    use, pairs = world.relay.pairs.use, [world.pair(f"{host}:{port}") for port, host in enumerate(("192.0.2.1", "192.0.2.1", "[2001:db8::5]"), 1)]
    for number, (client, upstream, pair) in enumerate(pairs):
        passes(world, client, upstream, request(1, 4, number))
        passes(world, upstream, client, answer(number))
        use.see(pair)
    (frames,) = [found for measure, found in used(use).items() if measure == "frames"]
    ids = {key[1] for key in frames}
    assert (sorted(key[2] for key in frames), sorted(frames.values()), len(ids)) == ([ADDRESS, "2001:db8::/64"], [2, 4], 1)
    for _, _, pair in pairs:
        end(world, pair)


def test_memory_is_what_is_held_when_it_is_seen(make: Any) -> None:
    world = make()
    use, (client, _, pair) = world.relay.pairs.use, world.pair()
    client.sendall(frame(bytes(2000))[:500])
    world.until(lambda: pair.client.channel.staged == 500)
    use.see(pair)
    assert used(use)["held"] == {("ANONYMOUS", "", ADDRESS): world.pool.used}
    end(world, pair)


def failure(word: str, attempted: str = "ann") -> AuthenticationError:
    error = AuthenticationError("no")
    error.failure, error.attempted = word, attempted
    return error


@pytest.mark.parametrize(
    ("cause", "error", "found"),
    [
        (Cause.TLS_FAILED, TlsError("no", reason="not_tls"), {"refusals": {("", "", ADDRESS): 1}}),
        (Cause.AUTH_FAILED, failure("mechanism"), {"refusals": {("", "", ADDRESS): 1}}),
        (Cause.AUTH_FAILED, failure("unavailable"), {"unavailable": {("", "", ""): 1}}),
        (Cause.PEER_RESET, failure("credentials"), {}),
        (
            Cause.AUTH_FAILED,
            failure("credentials"),
            {"logins": {("ann", "", ADDRESS): 1}, "login_users": {("ann", "", ""): 1}, "login_addresses": {("", "", ADDRESS): 1}},
        ),
    ],
)
def test_a_client_that_is_refused_is_counted_and_a_login_that_fails_with_the_name_that_was_tried(
    make: Any, cause: Cause, error: Any, found: Any
) -> None:
    world = make()
    _, pair = world.client()
    end(world, pair, cause, error)
    assert used(world.relay.pairs.use) == found


def test_logins_with_ten_thousand_names_from_one_address_take_bounded_memory_and_the_address_is_exact(make: Any) -> None:
    world = make()
    use = world.relay.pairs.use
    _, pair = world.client()
    end(world, pair, Cause.AUTH_FAILED, failure("credentials", "user-0"))
    for number in range(1, 10_000):  # the closed pair, under other names
        pair.client.channel.error = failure("credentials", f"user-{number}")
        use.ended(pair)
    lists, totals = use.take()
    assert totals == {("logins", "l"): 10_000}
    assert lists["login_addresses"].counts == {("l", "", "", ADDRESS): 10_000}
    assert all(len(found.counts) <= 1_000 for found in lists.values())
    assert max(lists["login_users"].counts.values()) <= 1
