"""What each client prints when framegate refuses it; a wrong password and an unknown user look the same."""

import time
from typing import Any

import pytest

from tests.peers.clients import CLIENTS, Client, Entry
from tests.peers.table import SAID
from tests.peers.world import World, person

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]
PLAIN = "Authentication failed: Invalid username or password"
SCRAM = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512"
TOKEN = '{"status": "invalid_token"}'
# What stands before the words that framegate sent, by client.
PRINTS = {
    "confluent-kafka": "_AUTHENTICATION: .*SASL authentication error: ",
    "kafka-python": "Connection lost: .*SaslAuthenticationFailedError: ",
    "aiokafka": "SaslAuthenticationFailed: ",
    "kcat": "Local: Authentication failure: .*SASL authentication error: ",
    "java": "failed authentication due to: ",
}
# kafka-python shows an answer only if it does not find the end of the connection behind it, also at a broker; it tries again for 3 s.
LATE = {"kafka-python": "Connection lost: KafkaConnectionError: socket disconnected"}
# aiokafka takes the refusal of a token for a welcome; it then prints that it could not connect, and nothing else.
MUTE = "^aiokafka.errors.KafkaConnectionError: "
REVOKED = {
    "openssl": "alert certificate revoked",
    "confluent-kafka": "alert certificate revoked",
    "kafka-python": "(?i)alert.certificate.revoked",
    "aiokafka": "KafkaConnectionError: Connection at 127.0.0.1:\\d+ closed",
    "kcat": "ERROR: Local: .*alert certificate revoked",
    "java": "Received fatal alert: certificate_revoked",
}


def refusal(world: World, client: Client, entry: Entry, way: str, printed: str) -> tuple[str, str]:
    began_ns = time.time_ns()
    said = client.produce(entry, "terminated_nothing", ["x"])
    found = said.line(printed) or (said.line(LATE[client.name]) if client.name in LATE else "")
    assert found, f"exit code {said.code}: {said.text[-2000:]}"
    cause = "auth_failed" if entry.mechanism else "tls_failed"
    return found, str(world.closed_since(began_ns, "terminated", way, cause=cause)[0]["detail"])


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in PRINTS for way in ("PLAIN", "SCRAM-SHA-512") if (name, way) != ("kcat", "SCRAM-SHA-512")]
)
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(world: World, client: Client, name: str, way: str, record_property: Any) -> None:
    """kcat's SCRAM is refused whoever it is: test_matrix.py."""
    printed = PRINTS[name] + (PLAIN if way == "PLAIN" else SCRAM)
    wrong, wrong_row = refusal(world, client, world.entry("terminated", way, password="wrong"), way, printed)
    nobody, nobody_row = refusal(world, client, world.entry("terminated", way, user="nobody"), way, printed)
    late = LATE.get(name, "-")
    assert wrong == nobody or late in wrong or late in nobody
    assert (wrong_row, nobody_row) == (f"{way}: wrong password", f"{way}: no such user"), "the log tells them apart"
    record_property(SAID, [(f"{name}: wrong password, {way}", "prints", wrong), (f"{name}: unknown user, {way}", "prints", nobody)])


@pytest.mark.parametrize(
    ("fault", "claims", "logged"),
    [("expired token", {"exp": -90}, "token: expired "), ("wrong audience", {"aud": "others"}, "token: for the audience 'others'")],
)
@pytest.mark.parametrize("name", [name for name in PRINTS if name != "kcat"])
def test_an_expired_token_and_one_for_another_audience_are_refused(
    world: World, client: Client, name: str, fault: str, claims: dict[str, Any], logged: str, record_property: Any
) -> None:
    """kcat makes its own tokens: test_matrix.py."""
    claims = {key: int(time.time()) + value if key == "exp" else value for key, value in claims.items()}
    way = "OAUTHBEARER"
    entry = world.entry("terminated", way, token=world.issuer.token(person(way), **claims))
    found, row = refusal(world, client, entry, way, MUTE if name == "aiokafka" else PRINTS[name] + TOKEN)
    assert row.startswith(f"{way}: {logged}")
    record_property(SAID, [(f"{name}: {fault}", "prints", found)])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_revoked_certificate_is_refused(world: World, client: Client, name: str, record_property: Any) -> None:
    certificate, key = world.revoked
    found, row = refusal(world, client, world.entry("terminated", "mTLS", certificate=certificate, key=key), "mTLS", REVOKED[name])
    assert "certificate revoked" in row
    record_property(SAID, [(f"{name}: revoked certificate", "prints", found)])
