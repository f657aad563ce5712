"""The rules of a listener about Kafka's APIs, topics, groups and transactional ids, and what they say about one request.

The first rule whose principals and client ids match decides; without one, all is allowed. A rule is compiled to a table: by API, the versions that
are passed without a further look. So a request that it passes costs one look-up, which listeners with brokers make anyway. Others are judged
(``KafkaJudge``): a request passes, is answered with Kafka's own error, or is sent without the part that is refused.

Where names are restricted, what cannot be examined is not passed:

- Topics by their ids: ApiVersions offers the greatest version with names, and later ones are refused. A client that was offered a later one, before
  rules restricted topics, has its connection ended at such a request: it connects again, and uses the version that is offered then.
- Sessions of Fetch: a request of a session does not name what it reads. Each Fetch is sent as one outside of sessions; one that continues a session
  is answered as if the broker had forgotten it, and the client asks for all its partitions again.
- Answers that list topics or groups lose the others (``AnswerChange``).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from librt.strings import read_i16_be, read_i32_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.config import model
from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka import subjects
from framegate.proxy.kafka.error_answers import error_answer, error_elements
from framegate.proxy.kafka.schema import Api, api, api_key, apis
from framegate.proxy.kafka.subjects import GROUP, TOPIC, TRANSACTIONAL_ID, Allowed, Finding, Patterns

KINDS: Final = {0: "api", TOPIC: "topic", GROUP: "group", TRANSACTIONAL_ID: "transactional_id"}  # what a refusal is about, by kind of name
NEVER_PASSES: Final = 0x7FFF << 16  # in a table, of an API of which no version is passed without a look

_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_ADD_PARTITIONS_TO_TXN: Final = 24
_SASL_AUTHENTICATE: Final = 36
_ALWAYS_ALLOWED: Final = (_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE)
_CODES: Final = {0: 31, TOPIC: 29, GROUP: 30, TRANSACTIONAL_ID: 53}  # CLUSTER_AUTHORIZATION_FAILED, TOPIC_… and so on
_OPERATION_NOT_ATTEMPTED: Final = 55
_FETCH_SESSION_ID_NOT_FOUND: Final = 70
_NO_ANSWER: Final = b"\0"  # of a Produce request with acks=0, which nobody gets
_CLIENT_ID: Final = 8  # where it begins in a body
_ANY_VERSION: Final = 0x7FFF


class Rule:
    """One rule, compiled. ``narrow``: only versions that are understood are passed."""

    def __init__(self, rule: model.KafkaRule, *, narrow: bool) -> None:
        self._principals: Final = _patterns(rule.principals)
        self._client_ids: Final = _patterns(rule.client_ids)
        self._allow: Final = frozenset(_keys(rule.allow))
        self._deny: Final = frozenset(_keys(rule.deny))
        names = {TOPIC: rule.topics, GROUP: rule.groups, TRANSACTIONAL_ID: rule.transactional_ids}
        patterns = {kind: Patterns(texts) for kind, texts in names.items() if texts}
        self.allowed: Final = Allowed(patterns) if patterns else None  # the names that are allowed; None: all are
        # by API key, the greatest version that ApiVersions offers, -1 none; None: all that are understood
        self.greatest: vec[i32] | None = None if self.allowed is None or not self.allowed.kinds & TOPIC else _greatest()
        table = vec[i32]()
        for known in apis():
            while len(table) < known.key:
                table = append(table, i32(NEVER_PASSES))
            table = append(table, i32(self._versions(known, narrow)))
        # by API key, the versions that are passed without a further look: ``least << 16 | greatest``; what is not in it, never
        self.table: vec[i32] = table

    def _versions(self, known: Api, narrow: bool) -> int:
        examined = self.allowed is not None and subjects.kinds_of(known) & self.allowed.kinds
        if self.denies(known.key) or examined:
            return NEVER_PASSES
        least = max(known.least, 1) if known.key == _SASL_HANDSHAKE else known.least
        return least << 16 | known.most if narrow else _ANY_VERSION

    def matches(self, principal: str, client_id: str) -> bool:
        """Whether it decides about the requests of a client."""
        if self._principals is not None and not self._principals.match(principal):
            return False
        return self._client_ids is None or self._client_ids.match(client_id)

    def denies(self, key: int) -> bool:
        if key in _ALWAYS_ALLOWED:
            return False
        return key in self._deny or (len(self._allow) > 0 and key not in self._allow)


def _patterns(texts: tuple[str, ...]) -> Patterns | None:
    return Patterns(texts) if texts else None


def _keys(names: tuple[str, ...]) -> list[int]:
    return [key for key in map(api_key, names) if key is not None]


def _greatest() -> "vec[i32]":
    found = vec[i32]()
    for known in apis():
        while len(found) < known.key:
            found = append(found, i32(-1))
        found = append(found, i32(subjects.greatest_named_version(known)))
    return found


class Refusal(NamedTuple):
    """A request that was refused, or would be."""

    key: int  # of its API. kind: of the name, 0 the API itself. name: the first one that is refused.
    kind: int
    name: str
    # principal, client_id: of the client
    principal: str
    client_id: str


class KafkaRulesInForce:
    """The rules of one listener. They may be replaced at any time: judges follow.

    Attributes:
        report_only: nothing is refused, only counted.
        by_client: a rule names client ids.
    """

    def __init__(self, rules: model.KafkaRules) -> None:
        self.number: i64 = 0  # grows with each replacement
        self.refused: Callable[[Refusal], None] | None = None  # called with each refusal; None: nobody wants to know
        self.narrow: Final = rules.unknown_versions == "narrow"  # only versions that are understood are passed
        self._all: Final = Rule(model.KafkaRule(), narrow=self.narrow)
        self.put(rules)

    def put(self, rules: model.KafkaRules) -> None:
        self._rules = [Rule(rule, narrow=self.narrow) for rule in rules.rules]
        self.report_only = rules.report_only
        self.by_client = any(rule.client_ids for rule in rules.rules)
        self._restricts_topics = any(rule.topics for rule in rules.rules)
        self.number += 1

    def greatest(self, key: int) -> int:
        """The greatest version of an API that is offered to a client that has not authenticated, so that its rule is not known: -1: none."""
        if self.report_only or not (self.narrow or self._restricts_topics):
            return _ANY_VERSION
        known = api(key)
        if known is None:
            return -1
        return subjects.greatest_named_version(known) if self._restricts_topics else known.most

    def choose(self, principal: str, client_id: str) -> Rule:
        """The rule that decides about the requests of a client."""
        for rule in self._rules:
            if rule.matches(principal, client_id):
                return rule
        return self._all


class AnswerChange:
    """What is changed in the answer to a request that was passed on. ``allowed``: the names that may be listed; None: all that the answer has."""

    def __init__(self, api: Api, version: i64, results: list[bytes], allowed: Allowed | None) -> None:
        self.api: Final[i64] = api.key << 16 | version  # the request's ``api key << 16 | version``
        self._api: Final = api
        self._version: Final[i64] = version
        self._results: Final = results
        self._allowed: Final = allowed

    @property
    def size(self) -> i64:
        """Bytes of the results."""
        total: i64 = 0
        for result in self._results:
            total += i64(len(result))
        return total

    @property
    def needs_whole(self) -> bool:
        """Whether the whole answer must be there, not only its beginning."""
        return self._allowed is not None

    def apply(self, body: bytes, size: i64) -> bytes:
        """The changed answer, or its changed beginning. ``size``: of the whole body. Raises KafkaFormatError."""
        if self._allowed is not None:
            body = subjects.without_denied(self._api, self._version, body, self._allowed)
        return subjects.with_results(self._api, self._version, body, self._results, size) if self._results else body


class KafkaJudge:
    """Judges the requests of one connection.

    Attributes:
        table, greatest: of the rule for the client id of the last request.
        narrow, by_client: as of the rules.
    """

    def __init__(self, rules: KafkaRulesInForce, principal: str) -> None:
        self.answer: bytes = b""  # after ``judge``, the body of the answer in place of the request; empty: it is passed on
        self.request: bytes = b""  # likewise, the body that is passed on in its place; empty: the request itself
        self.change: AnswerChange | None = None  # likewise, of the answer to what is passed on; None: none
        self.fault: str = ""  # likewise, why the connection must end; empty: it goes on
        self._rules: Final = rules
        self._principal: Final = principal
        self._client: bytes = b""
        self._number: i64 = 0
        self._offered_ids: bool = False
        self._choose("")

    @property
    def narrow(self) -> bool:
        """Whether an API or version that is not known is not passed."""
        return self._rules.narrow and not self._rules.report_only

    @property
    def by_client(self) -> bool:
        """Whether rules ask for client ids (``knows_client``)."""
        return self._rules.by_client

    def _choose(self, client_id: str) -> None:
        self._number = self._rules.number
        self._client_id = client_id
        self._rule = self._rules.choose(self._principal, client_id)
        self.table: vec[i32] = self._rule.table
        self.greatest: vec[i32] | None = None if self._rules.report_only else self._rule.greatest

    def follow(self) -> None:
        """Take rules into account that were replaced; before each run of requests."""
        if self._number != self._rules.number:
            before = self.greatest
            self._choose(self._client_id)
            self._offered_ids = self._offered_ids or (before is None and self.greatest is not None)

    def knows_client(self, data: bytes, body: i64, end: i64) -> bool:
        """Whether a request has the client id of the rule in force, or rules do not ask for it."""
        if not self._rules.by_client:
            return True
        pos = body + _CLIENT_ID
        size: i64 = max(i64(read_i16_be(data, pos)), 0) if pos + 2 <= end else 0
        return data[pos + 2 : min(pos + 2 + size, end)] == self._client

    def judge(self, body: bytes, *, whole: bool = True) -> None:
        """Judge a request. ``body``: of at least eight bytes, of an API in any version. ``whole``: False: it is only the beginning, so names in it
        cannot be examined.
        """
        self.answer = self.request = b""
        self.change = None
        self.fault = ""
        if self._rules.by_client and not self.knows_client(body, 0, i64(len(body))):
            size = max(i64(read_i16_be(body, _CLIENT_ID)), 0) if len(body) >= _CLIENT_ID + 2 else 0
            self._client = body[_CLIENT_ID + 2 : _CLIENT_ID + 2 + size]
            self._choose(self._client.decode(errors="replace"))
        key, version = i64(read_i16_be(body, 0)), i64(read_i16_be(body, 2))
        known = api(int(key))
        understood = known is not None and known.least <= version <= known.most
        allowed = self._rule.allowed
        if self._rule.denies(int(key)):
            self._note(key, 0, "")
            if known is None or not understood:
                self.fault = f"version {version} of API {key}, which is refused, and has no answer that is understood"
            elif not whole:
                self.fault = f"a request of {known.name} in pieces, which is refused"
            else:
                self._answer(known, version, body, _code(known, version))
        elif allowed is not None and (known is None or subjects.kinds_of(known) & allowed.kinds):
            if known is None or not understood:
                self.fault = f"version {version} of API {key}, whose names of topics and groups cannot be examined"
            elif not whole:
                self.fault = f"a request of {known.name} in pieces, whose names of topics and groups cannot be examined"
            else:
                self._examine(known, version, body, allowed)
        if self._rules.report_only:
            self.answer = self.request = b""
            self.change = None
            self.fault = ""

    def _note(self, key: i64, kind: i64, name: str) -> None:
        if self._rules.refused is not None:
            self._rules.refused(Refusal(int(key), int(kind), name, self._principal, self._client_id))

    def _answer(self, known: Api, version: i64, body: bytes, code: int) -> None:
        try:
            self.answer = error_answer(known.key, int(version), read_i32_be(body, 4), body, code) or _NO_ANSWER
        except KafkaFormatError as error:
            self.fault = f"a request of {known.name}, version {version}: {error}"

    def _examine(self, known: Api, version: i64, body: bytes, allowed: Allowed) -> None:
        shape = subjects.subjects_of(known, version)
        try:
            found = shape.examine(body, allowed)
        except KafkaFormatError as error:
            self.fault = f"a request of {known.name}, version {version}: {error}"
            return
        if self._offered_ids and shape.by_id and allowed.kinds & TOPIC and subjects.greatest_named_version(known) >= 0:
            self.fault = (
                f"version {version} of {known.name} has ids of topics, and was offered before rules restricted topics: to connect again helps"
            )
            return
        if found.kind != 0:
            self._note(known.key, found.kind, found.name)
        keeps_empty = known.key == _METADATA  # its answer also names the brokers
        if found.whole or (found.denied and i64(len(found.denied)) == found.count and not keeps_empty):
            self._answer(known, version, body, _CODES[int(found.kind)])
            return
        if found.session_at >= 0 and allowed.kinds & TOPIC and not self._leave_session(known, version, body, found):
            return
        results: list[bytes] = []
        if found.denied:
            lists = subjects.result_list(known, int(version))
            assert lists is not None, "elements of a list are refused"
            results = error_elements(known.key, int(version), body, (lists[0].name, lists[1]), found.denied, _CODES[int(found.kind)])
            self.request = found.rest(self.request or body, compact=shape.compact)
            if known.key == _ADD_PARTITIONS_TO_TXN and version < 4:  # all are added to the transaction, or none
                self._answer(known, version, self.request, _OPERATION_NOT_ATTEMPTED)
                self.answer = subjects.with_results(known, version, self.answer, results, i64(len(self.answer)))
                self.request = b""
                return
        listed = subjects.lists_names(known.key) & allowed.kinds
        if results or listed:
            self.change = AnswerChange(known, version, results, allowed if listed else None)

    def _leave_session(self, known: Api, version: i64, body: bytes, found: Finding) -> bool:
        """Take a Fetch out of its session; False: it continues one, and is answered."""
        without = subjects.set_sessionless(body, found.session_at)
        if without is None:
            self._answer(known, version, body, _FETCH_SESSION_ID_NOT_FOUND)
            return False
        self.request = without if without is not body else b""
        return True


def _code(known: Api, version: i64) -> int:
    """The error of an API that is refused: the one that a broker gives for what the request is about."""
    kinds = GROUP if known.key == _FIND_COORDINATOR else subjects.subjects_of(known, version).marked
    for kind in (GROUP, TOPIC, TRANSACTIONAL_ID):
        if kinds & kind:
            return _CODES[kind]
    return _CODES[0]
