"""The error code of an answer as a whole, against answers that the writer of messages makes."""

from framegate.proxy.kafka.error_codes import ERROR_HEAD, error_code, error_place
from framegate.proxy.kafka.message import encode_answer
from framegate.proxy.kafka.schema import apis


def test_the_code_is_found_in_every_version_that_has_one_at_a_fixed_place_and_nowhere_else() -> None:
    found = set()
    for api in apis():
        for version in range(api.least, api.most + 1):
            fields = [field.name for field in api.fields(True) if field.is_in(version) and field.tag(version) < 0]
            fixed = fields[:1] == ["ErrorCode"] or fields[:2] == ["ThrottleTimeMs", "ErrorCode"]
            body = encode_answer(api, version, 7, {"ErrorCode": 0x1234} if fixed else {})
            for data, end in ((body, len(body)), (body[:ERROR_HEAD], len(body)), (body[:5], len(body)), (body[:5], 5)):
                place = error_place(api.key << 16 | version)
                assert (place != 0) is fixed, (api.name, version)
                assert not fixed or error_code(place, data, 0, end) == (0x1234 if len(data) > 5 else 0), (api.name, version)
            if fixed:
                found.add(api.name)
    assert {"Fetch", "Heartbeat", "JoinGroup", "ApiVersions", "InitProducerId", "SaslAuthenticate"} <= found
    assert not {"Produce", "Metadata"} & found


def test_what_is_no_known_call_has_no_code() -> None:
    assert [error_place(call) for call in (-1, 127 << 16, 128 << 16, 12 << 16 | 32, 12 << 16 | 31)] == [0] * 5
    tagged = b"\0\0\0\x07\x01" + bytes(4) + b"\0\x1b"
    assert error_code(error_place(12 << 16 | 4), tagged, 0, len(tagged)) == 0
