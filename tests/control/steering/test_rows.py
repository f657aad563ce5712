"""framegate.control.steering.rows: a change that cannot be audited is refused; what is written can be changed."""

import pytest

from framegate.control.errors import UnavailableError
from tests.fakes.fleet import Fleet, run


def test_an_audit_row_is_written_or_the_change_is_refused() -> None:
    async def scenario(made: Fleet) -> None:
        made.steering.audit.reserve()
        made.steering.audit.publish({"who": "root"})
        assert made.log.events("audit")[0]["who"] == "root"
        made.log.room = False
        with pytest.raises(UnavailableError, match="cannot be audited"):
            made.steering.audit.reserve()

    run(scenario)


def test_the_level_is_in_force_and_in_the_configuration() -> None:
    async def scenario(made: Fleet) -> None:
        status = made.steering.log.change("warning", {"closed": False})
        assert (status.level, status.silenced, made.steering.state.config.log.level) == ("warning", ("closed",), "warning")
        assert made.steering.log.status() == status

    run(scenario, 1)
