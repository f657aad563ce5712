"""``framegate explain``."""

from tests.fakes.cli import Cli
from tests.fakes.plane import channel_row


def test_a_channel_and_a_listener_are_explained_in_sentences_and_as_json(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-7", unsent={"request": 0, "response": 3 << 20}))
    channel, wait = cli("explain", "0-1-7").stdout.splitlines()
    assert channel.startswith("channel 0-1-7: 10.0.0.9:51000 (CN=client; client id billing-7; apache-kafka-java 3.7.0) on listener kafka")
    assert wait.startswith("- client 10.0.0.9:51000 (channel 0-1-7, client id billing-7) has not taken 3MiB of answers")
    assert cli("explain", "kafka").stdout.splitlines()[:2] == ["listener kafka: 1 channel open, 1 of them waits", wait]
    assert [item["kind"] for item in cli.json("explain", "kafka")["waits"]] == ["KIND_CLIENT", "KIND_FAILED_ENDPOINT"]
    for what in ("0-1-9", "none"):
        missing = cli("explain", what)
        assert (missing.exit_code, what in missing.stderr) == (3, True), what
