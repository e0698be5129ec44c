"""Labelled examples out of two Debian packages, for the tests and, whole, for experiments.

    apt-get download wordnet-base python3.11-doc
    for package in *.deb; do dpkg -x "$package" unpacked; done
    python tests/tasks/examples/make_examples.py --wordnet unpacked/usr/share/wordnet \
        --python-docs unpacked/usr/share/doc/python3.11/html/_sources --output examples --rows 300

Without `--rows` everything is written. README.md beside this file says what the sets are and whose they are.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

# The lexicographer files of WordNet in the order of their numbers (lexnames(5WN)).
CLASSES = [
    "adj.all",
    "adj.pert",
    "adv.all",
    "noun.Tops",
    "noun.act",
    "noun.animal",
    "noun.artifact",
    "noun.attribute",
    "noun.body",
    "noun.cognition",
    "noun.communication",
    "noun.event",
    "noun.feeling",
    "noun.food",
    "noun.group",
    "noun.location",
    "noun.motive",
    "noun.object",
    "noun.person",
    "noun.phenomenon",
    "noun.plant",
    "noun.possession",
    "noun.process",
    "noun.quantity",
    "noun.relation",
    "noun.shape",
    "noun.state",
    "noun.substance",
    "noun.time",
    "verb.body",
    "verb.change",
    "verb.cognition",
    "verb.communication",
    "verb.competition",
    "verb.consumption",
    "verb.contact",
    "verb.creation",
    "verb.emotion",
    "verb.motion",
    "verb.perception",
    "verb.possession",
    "verb.social",
    "verb.stative",
    "verb.weather",
    "adj.ppl",
]
ROLE = re.compile(r":(?:py:)?(func|class|meth|mod|exc|attr|data|ref|pep|term):`[!~]?([^`<]+?)(?:\s*<[^`>]*>)?`")
MARKUP = re.compile(
    r"(?<!\w):[\w:-]+:`[!~]?([^`<]*?)(?:\s*<[^`>]*>)?`|``([^`]*)``|\*\*?([^*\s][^*]*)\*\*?|`([^`<]*?)(?:\s*<[^`>]*>)?`_+"
)
ENTRY = re.compile(r"^\.\. (?:function|class|exception|data|decorator):: ([\w.]+)", re.MULTILINE)
PATH = re.compile(r"/(?:home|root|tmp|Users)/")  # of somebody's machine: of no use here, and a test looks for such
ADDED = re.compile(r"^ +\.\. versionadded:: ([\d.]+)[ \t]*$", re.MULTILINE)


def synsets(folder: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(class, first word, gloss, examples) of each set of synonyms."""
    for name in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{name}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue
            data, _, text = line.partition(" | ")
            fields = data.split()
            gloss = re.split(r'; ?"', text, maxsplit=1)[0].strip()
            word = re.sub(r"\(\w+\)$", "", fields[4]).replace("_", " ")
            yield CLASSES[int(fields[1])], word, gloss, re.findall(r'"([^"]+)"', text)


def glosses(folder: Path) -> Iterator[dict]:
    """A gloss, and the lexicographer class of what it defines."""
    for label, _, gloss, _ in synsets(folder):
        if gloss and not gloss.startswith('"'):
            yield {"text": gloss, "label": label}


def definitions(folder: Path) -> Iterator[dict]:
    """A word in a sentence, and what it means there."""
    for _, word, gloss, examples in synsets(folder):
        if gloss and not gloss.startswith('"') and examples and word in examples[0]:
            yield {"text": f"{word}: {examples[0]}", "target": gloss}


def plain(text: str) -> str:
    """Text without inline markup."""
    return MARKUP.sub(lambda match: next(group for group in match.groups() if group is not None), text)


def paragraphs(folder: Path) -> Iterator[str]:
    """Paragraphs of prose, on one line each."""
    for path in sorted((folder / "library").glob("*.txt")):
        for block in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            line = " ".join(block.split())
            if re.match(r"[A-Z]", line) and line.endswith(".") and "::" not in line:
                yield line


def roles(folder: Path) -> Iterator[dict]:
    """A paragraph of the documentation; what its source marks as a function, a class … is an entity of that class."""
    for line in paragraphs(folder):
        words, tags, end = [], [], 0
        for match in [*ROLE.finditer(line), None]:
            between = plain(line[end : match.start() if match else len(line)])
            parts = re.findall(r"\w[\w.']*\w|\w|[^\w\s]", between)
            words, tags = words + parts, tags + ["O"] * len(parts)
            if match:
                inside = match[2].replace("()", "").split()
                words += inside
                tags += [f"{'I' if number else 'B'}-{match[1]}" for number in range(len(inside))]
                end = match.end()
        if 5 <= len(words) <= 60 and set(tags) != {"O"}:
            yield {"words": words, "tags": tags}


def versions(folder: Path) -> Iterator[dict]:
    """Entries of one module after each other, and a question after the version that one of them came with."""
    for path in sorted((folder / "library").glob("*.txt")):
        source = path.read_text(encoding="utf-8")
        starts = [match.start() for match in ENTRY.finditer(source)]
        entries = [source[start:end] for start, end in pairwise([*starts, len(source)])]
        for index, entry in enumerate(entries):
            added = ADDED.findall(entry)
            if len(added) != 1:
                continue
            texts = [said(neighbour) for neighbour in entries[max(0, index - 1) : index + 2]]
            place = min(index, 1)
            own = re.search(rf"Added in version {re.escape(added[0])}\.(?!\d)", texts[place])
            if own is None:
                continue
            start = sum(len(text) + 1 for text in texts[:place]) + own.start() + len("Added in version ")
            name = ENTRY.match(entry)[1]
            question = f"In which version of Python was {name} of {path.name.removesuffix('.rst.txt')} added?"
            answers = {"text": [added[0]], "answer_start": [start]}
            yield {"text": " ".join(texts), "question": question, "answers": answers}


def said(entry: str) -> str:
    """An entry of the documentation as prose."""
    entry = ADDED.sub(r"Added in version \1.", entry)
    entry = re.sub(r"\.\. versionchanged:: ([\d.]+)", r"Changed in version \1:", entry)
    entry = re.sub(r"^ *\.\. (?:function|class|exception|data|decorator):: ", "", entry, flags=re.MULTILINE)
    return plain(" ".join(re.sub(r"^ *(?:\.\. .*|:[\w ]+:)$", "", entry, flags=re.MULTILINE).split()))[:700]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--python-docs", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, help="rows of each set, drawn by lot; all of them without it")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    sets = {"glosses": glosses(given.wordnet), "definitions": definitions(given.wordnet)}
    sets |= {"roles": roles(given.python_docs), "versions": versions(given.python_docs)}
    for name, rows in sets.items():
        found = [row for row in rows if not PATH.search(str(row))]
        if given.rows is not None and given.rows < len(found):
            found = random.Random(0).sample(found, given.rows)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in found]
        (given.output / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(found):,} rows")


if __name__ == "__main__":
    main()
