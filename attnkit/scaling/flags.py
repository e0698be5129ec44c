"""The flags of the jobs of `attnkit scale`; nothing heavy is imported, so that `--help` is quick."""

import argparse
import os
from pathlib import Path
from typing import NoReturn, get_args

from attnkit.errors import UsageError, nearest
from attnkit.scaling.choices import (
    BUDGETS,
    DEFAULT_LAW,
    TRACED_BACKENDS,
    Convention,
    Optimizer,
    Precision,
    Recompute,
    Rule,
    Sharding,
)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are `UsageError`s."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('attnkit ')}: {message}; see {self.prog} --help")


class Help(argparse.HelpFormatter):
    """Help with the defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        said = action.default is None or action.default is False or "default" in text
        return text if said else f"{text} (default: %(default)s)".strip()


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


def add_format(parser: Parser, *others: str) -> None:
    """How the answer is written."""
    formats = ("rich", "json", *others)
    parser.add_argument("--format", default="rich", help=" or ".join(formats))
    parser.set_defaults(formats=formats)


def take_format(given: argparse.Namespace) -> str:
    """Take how the answer is written out of what is given to the job."""
    form, formats = vars(given).pop("format"), vars(given).pop("formats")
    if form not in formats:
        raise UsageError(f"unknown format {form!r}: {nearest(form, formats)}")
    return str(form)


PNG = b"\x89PNG"  # how such a file begins


def writable(path: str, *, ending: str = ".png") -> Path:
    """A file that can be written, as far as its folder tells; over nothing but a picture by a picture."""
    place = Path(path).expanduser()
    if not place.name:
        raise UsageError(f"{path!r} names no file: give one that ends in {ending}")
    if place.suffix.lower() != ending:
        raise UsageError(f"{path}: has no ending {ending}: name it {place.with_suffix(ending).name}")
    if ending == ".png" and place.is_file() and place.read_bytes()[: len(PNG)] != PNG:
        raise UsageError(f"{path}: is there already and is no picture: choose another file")
    if not place.parent.is_dir() or place.is_dir() or not os.access(place.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: give a file in a folder that exists and is yours")
    return place


def fill_table(parser: Parser) -> None:
    """The flags of `table`."""
    add_format(parser, "csv", "markdown", "latex")
    parser.add_argument("--mfu", type=float, default=0.3, help="model FLOPs utilization of the predicted times")
    parser.add_argument("--png", metavar="FILE", help="draw parameters over years and compute over parameters")


def fill_count(parser: Parser) -> None:
    """The flags of `count`."""
    add_subject(parser)
    add_format(parser)


def fill_time(parser: Parser) -> None:
    """The flags of `time`."""
    parser.add_argument("--flops", type=float, required=True, help="FLOPs of the whole job")
    parser.add_argument("--device", required=True, help="a device of the catalogue, or cpu")
    parser.add_argument("--num_devices", type=int, default=1)
    parser.add_argument("--mfu", type=float, help="model FLOPs utilization; by default 0.4, and 0.2 on a CPU")
    parser.add_argument("--hours", type=float, help="time that the job took, for the utilization, in place of --mfu")
    parser.add_argument("--dtype", help="dtype of the peak; by default the fastest but fp8")
    parser.add_argument("--price", type=float, help="money per device and hour")
    add_format(parser)


def fill_plan(parser: Parser) -> None:
    """The flags of `plan`."""
    parser.add_argument("--budget", help=f"devices and time, such as {BUDGETS}")
    parser.add_argument("--parameters", type=float, help="of the model")
    parser.add_argument("--tokens", type=float, help="to train on")
    parser.add_argument("--flops", type=float, help="to spend, 6 for each parameter and token")
    parser.add_argument("--target_loss", type=float, help="nats per token to reach, by the law")
    parser.add_argument("--memory_per_device", metavar="SIZE", help="40GiB, 40GB or bytes; by default the device's own")
    parser.add_argument("--unique_tokens", type=float, help="tokens of text that there are; others are repetitions")
    parser.add_argument("--num_devices", type=int, help="by default those of the budget, or as few as hold the model")
    parser.add_argument("--mfu", type=float, help="model FLOPs utilization; by default 0.4, and 0.2 on a CPU")
    parser.add_argument("--price", type=float, help="money per device and hour")
    parser.add_argument(
        "--law",
        default=DEFAULT_LAW,
        help="epoch, hoffmann, hoffmann_rounded, or the file of a fit",
    )
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default 1024, or 256 for a small model")
    parser.add_argument("--vocab_size", type=int, help="by default a power of two up to 32768 that suits the size")
    parser.add_argument("--precision", help=" or ".join(get_args(Precision)) + "; by default fp32 or autocast")
    parser.add_argument("--optimizer", default="adamw", help=" or ".join(get_args(Optimizer)))
    parser.add_argument("--scorer", default="scaled_dot", help="the scorer of the model")
    parser.add_argument("--backend", help=" or ".join(TRACED_BACKENDS) + "; by default the fastest that can")
    parser.add_argument("--source", default="python-docs", help="data.source of the run")
    parser.add_argument("--output_dir", default="runs/planned", help="training.output_dir of the run")
    parser.add_argument("--output", metavar="FILE", help="write the run that `attnkit pretrain --config FILE` takes")
    add_format(parser)


def fill_fit(parser: Parser) -> None:
    """The flags of `fit`."""
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="finished runs, folders of them, CSV files")
    parser.add_argument("--parameters", type=float, help="extrapolate to a model of this size, with --tokens")
    parser.add_argument("--tokens", type=float, help="and to so many tokens, with --parameters")
    parser.add_argument("--png", metavar="FILE", help="draw loss over compute and isoFLOP curves")
    parser.add_argument("--output", metavar="FILE", help="write the law that `attnkit scale plan --law FILE` takes")
    add_format(parser)


def fill_flops(parser: Parser) -> None:
    """The flags of `flops`."""
    add_subject(parser)
    add_batch(parser)
    parser.add_argument("--past", type=int, default=0, help="tokens in the cache")
    parser.add_argument("--convention", default="exact", help=" or ".join(get_args(Convention)))
    parser.add_argument("--recompute", default="none", help=" or ".join(get_args(Recompute)))
    parser.add_argument("--backend", default="eager", help="the attention backend, for the convention 'hardware'")
    parser.add_argument("--inference", action="store_true", help="a forward pass alone, no training")
    add_format(parser)


def fill_memory(parser: Parser) -> None:
    """The flags of `memory`."""
    add_subject(parser)
    add_batch(parser)
    parser.add_argument("--precision", default="fp32", help=" or ".join(get_args(Precision)))
    parser.add_argument("--optimizer", default="adamw", help=" or ".join(get_args(Optimizer)))
    parser.add_argument("--backend", default="eager", help=" or ".join(TRACED_BACKENDS))
    parser.add_argument("--recompute", default="none", help=" or ".join(get_args(Recompute)))
    parser.add_argument("--logits", help="chunked (as pretrain has it; the default for our language models) or whole")
    parser.add_argument("--inference", action="store_true", help="a forward pass with a full cache, no training")
    parser.add_argument("--accumulates", action="store_true", help="gradients of earlier batches are there already")
    parser.add_argument("--sharding", default="none", help=" or ".join(get_args(Sharding)))
    parser.add_argument("--data", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--tensor", type=int, default=1, help="devices that share each layer")
    parser.add_argument("--pipeline", type=int, default=1, help="devices that share the layers among them")
    parser.add_argument("--device", help="a device of the catalogue: how many of them training needs at least")
    parser.add_argument(
        "--fragmentation", type=float, help="part of the peak that an allocator may lose; 0.1 with a device"
    )
    parser.add_argument("--runtime", metavar="SIZE", help="what libraries take, e.g. 1GiB; by default the device's")
    add_format(parser)


def fill_audit(parser: Parser) -> None:
    """The flags of `audit`."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a decoder of attnkit, as import makes; by default the smallest GPT-2",
    )
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--batch_size", type=int, default=1, help="rows of a batch")
    add_format(parser)


def fill_calibrate(parser: Parser) -> None:
    """The flags of `calibrate`."""
    add_subject(parser)
    parser.add_argument("--batch_size", type=int, default=8, help="rows of a batch")
    parser.add_argument("--seq_len", type=int, help="tokens of a row; by default all that the model has positions for")
    parser.add_argument("--steps", type=int, default=5, help="steps to measure")
    parser.add_argument("--longer_steps", type=int, default=20, help="steps to predict")
    parser.add_argument("--no_check", action="store_true", help="do not run the longer run")
    add_format(parser)


def fill_transfer(parser: Parser) -> None:
    """The flags of `transfer`."""
    parser.add_argument("config", metavar="CONFIG", help="a decoder: a YAML or JSON file, the folder of a model or run")
    parser.add_argument("--rule", default="completep", help=" or ".join(get_args(Rule)))
    parser.add_argument("--base_hidden_size", type=int, required=True, help="width of the model that was tuned")
    parser.add_argument("--base_num_hidden_layers", type=int, required=True, help="layers of the model that was tuned")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="the rate that was tuned")
    parser.add_argument("--weight_decay", type=float, default=0.1, help="the weight decay that was tuned")
    parser.add_argument("--png", metavar="FILE", help="draw a coordinate check from the base's width to 8 times it")
    add_format(parser)
