"""The text that comes with Python, and the labels made from it."""

import re
import sys
from collections import Counter

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline

from attnkit.data import Documents, PretrainDataConfig, python_docs


@pytest.fixture(scope="module")
def labelled() -> list[dict[str, str]]:
    return python_docs.labelled()


def test_documents_are_distinct_cleaned_and_many() -> None:
    documents = python_docs.documents()
    assert len(documents) == len(set(documents)) > 5_000
    assert sum(map(len, documents)) > 1_500_000
    assert all(text.strip() and text.encode() for text in documents)
    assert any(text.startswith('The "assert" statement') for text in documents)
    assert "Return the arc tangent" not in documents  # of a module written in C: it has no source to read


def test_documents_are_the_same_each_time_and_nothing_is_imported() -> None:
    first = python_docs.documents()
    before = set(sys.modules)
    python_docs._docstrings.cache_clear()
    assert python_docs.documents() == first
    assert set(sys.modules) - before <= {"pydoc_data", "pydoc_data.topics"}


def test_documents_are_split_into_two_parts() -> None:
    documents = list(Documents(PretrainDataConfig(source="python-docs", held_out_fraction=0.1)))
    assert sorted(it.texts[0] for it in documents) == sorted(python_docs.documents())
    assert 0.08 < sum(it.held_out for it in documents) / len(documents) < 0.12


def test_labels_are_modules_with_enough_distinct_texts(labelled: list[dict[str, str]]) -> None:
    counts = Counter(row["label"] for row in labelled)
    assert 15 <= len(counts) <= 25
    assert min(counts.values()) >= python_docs.LABEL_MIN_EXAMPLES
    assert 0.1 < max(counts.values()) / len(labelled) < 0.2
    assert {"tkinter", "email", "xml", "decimal"} <= set(counts) <= {*sys.stdlib_module_names}
    texts = [row["text"] for row in labelled]
    assert len(texts) == len(set(texts))
    assert min(map(len, texts)) >= python_docs.LABEL_MIN_CHARACTERS


def test_a_text_of_two_modules_is_labelled_with_neither(labelled: list[dict[str, str]]) -> None:
    labels = {row["label"] for row in labelled}
    found: dict[str, set[str]] = {}
    for module, docstring in python_docs._docstrings():
        label = module.removeprefix("_py").lstrip("_")
        if label in labels:
            found.setdefault(python_docs._without_name(docstring, label), set()).add(label)
    assert any(len(of_text) > 1 for of_text in found.values())
    assert all(found[row["text"]] == {row["label"]} for row in labelled)


def test_no_text_holds_its_label(labelled: list[dict[str, str]]) -> None:
    assert not [row for row in labelled if row["label"] in row["text"].lower()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Email the email.", "module the module."),
        ("See email.mime.text, email_policy and MyEMAILs.", "See module, module and module."),
        ("Use policy.EmailPolicy(email=1): it works.", "Use module(module=1): it works."),
        ("An e-mail stays.", "An e-mail stays."),
    ],
)
def test_a_name_goes_with_the_word_that_holds_it(text: str, expected: str) -> None:
    assert python_docs._without_name(text, "email") == expected


def test_a_name_never_survives_in_any_spelling() -> None:
    for word in ("xml", "XML", "_xml", "xml2", "lxml", "a.xml.b", "xmlxml", "x.xml", "xml.", "<xml>", "XmlReader.xml"):
        assert not re.search("xml", python_docs._without_name(f"the {word} it", "xml"), re.IGNORECASE)


def test_labels_can_be_learned(labelled: list[dict[str, str]]) -> None:
    train, held_out = labelled[::2] + labelled[1::4], labelled[3::4]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), RidgeClassifier())
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    assert model.score([row["text"] for row in held_out], [row["label"] for row in held_out]) > 0.75
