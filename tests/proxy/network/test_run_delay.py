"""The time for which a thread was ready to run and did not, from a file as the kernel writes it."""

import os
import pathlib

from framegate.proxy.network.run_delay import RunDelay


def test_each_call_returns_what_has_come_since_the_one_before(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("100 5000 7\n", encoding="ascii")
    delay = RunDelay(str(file))
    found = [delay.since_last_ns()]
    for total in (5000, 12_000, 3_000_000_000):
        file.write_text(f"200 {total} 8\n", encoding="ascii")
        found.append(delay.since_last_ns())
    assert found == [0, 0, 7000, 2_999_988_000]
    delay.close()


def test_without_the_file_or_with_another_one_there_is_no_delay_and_no_descriptor(tmp_path: pathlib.Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text("x\n", encoding="ascii")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "missing", odd, tmp_path):
        delay = RunDelay(str(path))
        assert [delay.since_last_ns(), delay.since_last_ns()] == [0, 0]
    assert len(os.listdir("/proc/self/fd")) == before
    real = RunDelay()
    assert real.since_last_ns() == 0 <= real.since_last_ns()
    real.close()
