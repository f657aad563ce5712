"""framegate.control.steering.steering: the parts work together, and end together."""

from tests.fakes.fleet import Fleet, open_channels, run
from tests.fakes.scenario import run_by


@run_by(run)
async def test_the_parts_show_one_state(made: Fleet) -> None:
    await open_channels(made, 2)
    (listener,) = made.steering.listeners.statuses()
    assert (listener.name, listener.connections, listener.accepting, listener.tls) == ("a", 2, True, False)
    assert listener.address == made.acceptor.listeners["a"].address
    (upstream,) = await made.steering.upstreams.statuses()
    assert (upstream.name, upstream.addresses, upstream.error) == ("u", ("127.0.0.1:1",), "")
    assert not made.steering.state.build.compiled
    assert [slot for slot, _ in made.steering.state.cells] == [0, 1]
    assert ("framegate.config.revision", ()) in made.steering.state.measurements()
    assert made.steering.state.started_ns > 0
