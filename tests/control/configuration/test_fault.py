from control.configuration.fault import ConfigurationError, Fault


def test_a_fault_reads_as_a_sentence_with_line_key_value_and_reason() -> None:
    assert str(Fault(3, "a.b", "x", "is wrong")) == "line 3: a.b = x: is wrong"
    assert str(Fault(3, "a.b", "", "is required")) == "line 3: a.b: is required"
    assert str(Fault(0, "", "", "is empty")) == "line 0: the document: is empty"


def test_the_error_names_every_fault() -> None:
    error = ConfigurationError([Fault(1, "a", "", "x"), Fault(2, "b", "", "y")])
    assert str(error).splitlines() == ["line 1: a: x", "line 2: b: y"]
