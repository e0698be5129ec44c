"""The laws that every attention part of attnkit keeps, as functions to run on one's own.

    from attnkit.testing import check_scorer
    check_scorer(MyScorer)

Each law raises an `AssertionError` that says what is wrong, on which backend, and the difference.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging

from attnkit.attention import Scorer, scorers
from attnkit.attention.trial import check_part
from attnkit.errors import UsageError, first_line, line_of_error, nearest, place_of_class
from attnkit.testing.layers import LAYER_LAWS, SHAPE, backends_of
from attnkit.testing.models import MODEL_LAWS

__all__ = ["check_scorer"]


def check_scorer(scorer: type[Scorer], **options: Any) -> str:
    """Run every law on a scorer class, built with these options, and return which laws it keeps on which backends.

    The laws: scores have the shape of query and key, depend on these two tokens alone, not on their places unless the
    class says that it `knows_order`, are finite and the same at every call; maps leave what they are given as it is,
    with its type and on its device; the maps and `pair` give the scores
    of `forward`; every parameter gets a gradient, or the class says in `without_gradient` why not, and so do query and
    key where they count; `reset_parameters` sets every parameter; every backend that takes the scorer computes what
    eager attention computes, in values and gradients, and in half precision at most with twice the error of scaled dot;
    no influence of later tokens or of padding; output zero and a finite gradient for a query without keys; one whole
    graph under torch.compile; decoding with a cache = one pass; packed documents = separate ones; padding on either
    side, of a source too; saved and loaded, the same logits.

    Raises `AssertionError`, or `UsageError` where a model could not be built, with one line: the class and its place,
    the law and what is wrong.
    """
    check_class(scorer)
    with registered(scorer) as name, without_bars():
        check_part(scorer, base=Scorer, shape=SHAPE, options=options)
        for layer_law in LAYER_LAWS:
            with in_one_line_of(scorer, layer_law):
                layer_law(name, options)
        fields = {"scorer": name, "scorer_options": options or None, "position": "none"}
        for law in MODEL_LAWS:
            with in_one_line_of(scorer, law):
                law(**fields)
        laws = [said(law) for law in (*LAYER_LAWS, *MODEL_LAWS)]
        return f"{scorer.__qualname__} on {', '.join(backends_of(name))} keeps {len(laws)} laws: {', '.join(laws)}"


def check_class(scorer: Any) -> None:
    """Raise `UsageError` for what is no class of a scorer."""
    if isinstance(scorer, str):
        known = f"give scorers[{scorer!r}]" if scorer in scorers else nearest(scorer, scorers)
        raise UsageError(f"check_scorer takes a class, not the name {scorer!r}: {known}")
    if isinstance(scorer, Scorer):
        named = type(scorer).__qualname__
        raise UsageError(f"check_scorer takes a class, not an instance: give {named}, and its options by name")
    if problem := scorers.unfit(scorer):
        raise UsageError(f"check_scorer: {problem}")


def said(law: Callable[..., None]) -> str:
    """A law by its name."""
    return law.__name__.replace("_", " ")


@contextmanager
def in_one_line_of(scorer: type[Scorer], law: Callable[..., None]) -> Iterator[None]:
    """Whatever breaks a law, as one line that names the class and its place, or the line of it that fails."""
    place = f"{scorer.__qualname__} ({place_of_class(scorer)})"
    try:
        yield
    except UsageError:
        raise
    except AssertionError as error:
        raise AssertionError(f"{place}: {' '.join(str(error).split())}") from error
    except Exception as error:
        line = line_of_error(error, place_of_class(scorer).rpartition(":")[0])
        told = f"{place} breaks the law {said(law)!r}: {type(error).__name__}: {first_line(error)}"
        raise AssertionError(told if line is None else f"{told} ({line})") from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the progress bars of transformers, as long as it lasts."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def registered(scorer: type[Scorer]) -> Iterator[str]:
    """A name under which the registry knows the class, given for the time of a check where it has none."""
    known = [name for name, cls in scorers.items() if cls is scorer]
    if known:
        yield known[0]
        return
    name = f"{scorer.__module__}.{scorer.__qualname__}"
    scorers.register(name)(scorer)
    try:
        yield name
    finally:
        del scorers[name]
