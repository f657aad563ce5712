from control.configuration.document import document_of, key_of


def test_a_mapping_without_a_file_has_texts_but_no_lines() -> None:
    document = document_of({"a": {"b": [True, "x", None]}})
    assert document.texts == {("a", "b", 0): "true", ("a", "b", 1): "x"}
    assert document.line(("a", "b")) == 0


def test_paths_read_as_people_write_them() -> None:
    assert key_of(("listeners", 0, "tls", "key")) == "listeners[0].tls.key"
    assert key_of(()) == ""
