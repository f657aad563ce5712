"""framegate.proxy.auth.mapping_rules: Kafka's rules, with its edge cases."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framegate.proxy.auth.mapping_rules import MappingRules, RuleError, compile_pattern
from tests.fakes.cases import each_of

RULES = ", ".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@each_of(
    ("name", "principal"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_wins(name: str, principal: str) -> None:
    assert MappingRules(RULES).apply(name) == principal


@each_of(
    ("text", "count"),
    [
        ("DEFAULT", 1),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT", 2),
        ("RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", 1),
        ("RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/", 1),
        ("RULE:^cn=(.?)|ou=(.?)$/$1/", 1),
        ("RULE://", 1),
        ("  RULE:// ,  DEFAULT  ", 2),
        (" RULE:  /     /U   ,DEFAULT  ", 2),
        ("", 0),
        (",   , , ,      , , ,   ", 0),
        (",,RULE://,,,DEFAULT,,", 2),
        ("     ,  , RULE:   /  /U    ,,  ,DEFAULT, ,", 2),
        (r"RULE:a\/+/*/L,RULE:\/*\*/**/", 2),
        (r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT", 5),
    ],
)
def test_rules_are_parsed_not_split(text: str, count: int) -> None:
    assert len(MappingRules(text)) == count


@each_of(
    "text",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "DEFAULT DEFAULT",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:a/b/LU",
        "RULE:a/b/ L",
        "RULE:a/b\\/",
        "RULE:a\\",
        "RULE:(/b/",
        "RULE:a/$/",
        "RULE:a/$x/",
        "RULE:a/${name}/",
        "RULE:(?<name>a)/${name/",
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        MappingRules("DEFAULT, " + text)
    assert caught.value.position >= len("DEFAULT, ") - 1


def test_no_rule_matches_nothing_and_no_match_is_told() -> None:
    assert MappingRules("").apply("CN=a") is None
    assert MappingRules("RULE:CN=a/b/").apply("CN=b") is None


@each_of(
    ("rule", "name", "principal"),
    [
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/", r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz", r"Tkac\, Adam"),
        (r"RULE:(.*)\/(.*)/$2\/$1/", "a/b", "b/a"),
        (r"RULE:(.*)/\$1\\$1/", "a", r"$1\a"),
        ("RULE:(.*)/$1@$2/", "a", "a@$2"),
        ("RULE:.*/$1x/", "a", "$1x"),
        ("RULE:(.)(.*)/$23/", "ab", "b3"),
        ("RULE:" + "(.)" * 12 + "/$12-$13-$120/", "abcdefghijkl", "l-a3-l0"),
        ("RULE:(.*)/$0$1/", "a", "aa"),
        ("RULE:(.)(x)?/[$2]/", "a", "[]"),
        ("RULE:(?<who>.*)/${who}!/", "a", "a!"),
        ("RULE:.*/user/", "CN=a", "user"),
        ("RULE:.*/U/L", "CN=a", "u"),
        ("RULE:CN=(.*)/$1/U", "CN=straße", "STRASSE"),
        ("RULE:N=a/b/,DEFAULT", "CN=a", "CN=a"),
        ("RULE:CN=a|CN=ab/b/", "CN=ab", "b"),
        ("RULE:CN=admin/admin/,DEFAULT", "CN=admin2", "CN=admin2"),
        ("RULE:CN=admin/admin/,DEFAULT", "CN=admin\n", "CN=admin\n"),
    ],
)
def test_a_replacement_is_expanded_once_for_the_whole_name(rule: str, name: str, principal: str) -> None:
    assert MappingRules(rule).apply(name) == principal


@given(st.text(alphabet="CN=ab,./\\ $1LU", max_size=20))
@example("")
def test_default_is_the_name_itself(name: str) -> None:
    assert MappingRules().apply(name) == name
    assert MappingRules("RULE:((?s:.*))/$1/").apply(name) == name


@given(st.text(alphabet="RULE:DEFAULT/,\\ ()$1.*", max_size=30))
def test_any_text_is_rules_or_a_fault(text: str) -> None:
    try:
        rules = MappingRules(text)
    except RuleError as caught:
        position = caught.position
    else:
        position = 0
        assert rules.apply("CN=a") is not None or "RULE" in text or len(rules) == 0
    assert 0 <= position <= len(text)


def test_classes_and_case_are_those_of_ascii_as_in_java() -> None:
    for pattern, text in ((r"app-\d+", "app-12"), (r"\w+", "s_1"), ("(?i)sink", "SINK"), (r"a\sb", "a\tb"), ("ü.", "üx")):
        assert compile_pattern(pattern).fullmatch(text) is not None
    for pattern, text in ((r"app-\d+", "app-١٢"), (r"\w+", "ſink"), ("(?i)sink", "ſink"), ("(?i)kafka", "\u212aafka"), (r"a\sb", "a\u2003b")):
        assert compile_pattern(pattern).fullmatch(text) is None


@each_of("pattern", ["a{99999999999999}", "(" * 600 + ")" * 600, "[a-z&&[^b]]", "[[a]b]", "(?u)a", "(", "a**"])
def test_what_is_no_pattern_or_another_in_java_is_a_fault(pattern: str) -> None:
    with pytest.raises(RuleError, match="is none"):
        compile_pattern(pattern)
