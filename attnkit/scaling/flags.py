"""What the jobs of `attnkit scale` share: their parser, and flags that several of them have."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from attnkit.errors import UsageError
from attnkit.scaling.subject import read_subject


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are `UsageError`s."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('attnkit ')}: {message}; see {self.prog} --help")


def add_subject(parser: Parser) -> None:
    """The config that most jobs are about."""
    parser.add_argument(
        "config", metavar="CONFIG", help="a YAML or JSON file, the folder of a model or run, a hub name"
    )
    parser.add_argument("--head", help="head of the model; by default the one it is pretrained with")


def add_batch(parser: Parser) -> None:
    """The tokens that a model is given."""
    parser.add_argument("--batch_size", type=int, default=1, help="rows of a batch")
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--target_len", type=int, help="tokens of the decoder, where there are two stacks")
    parser.add_argument("--predicted", type=int, help="positions of a row that go through the head")


def batch_of(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `add_batch`; a row has by default as many tokens as the model has positions."""
    seq_len = given.seq_len
    if seq_len is None:
        values = read_subject(given.config, head=given.head).config.to_dict()
        seq_len = values.get("max_position_embeddings") or values.get("n_positions")
        if seq_len is None:
            raise UsageError("the config says nothing of its positions: give --seq_len")
    return {
        "batch_size": given.batch_size,
        "seq_len": seq_len,
        "target_len": given.target_len,
        "predicted": given.predicted,
    }


def writable(path: str) -> Path:
    """A file that can be written, as far as its folder tells."""
    place = Path(path).expanduser()
    if not place.parent.is_dir() or place.is_dir():
        raise UsageError(f"{path}: cannot be written: give a file in a folder that exists")
    return place
