"""A polite end: SIGTERM and SIGINT end a run with exit code 0, with a checkpoint once there is something to keep."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A signal ended a run outside its loop. Not an `Exception`, so that nothing on the way takes it for an error."""


class StopRequest:
    """Whether a signal has asked this process to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        # Launchers pass on a Ctrl-C that the terminal has already sent, so a second signal must not end a save midway.
        self.asked = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Collect SIGTERM and SIGINT instead of dying of them, for a loop that asks after each step."""
    request = StopRequest()
    with _handling(request):
        yield request


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise `Stopped` at SIGTERM and SIGINT: there is nothing to save yet, or no more."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(signum).name)

    with _handling(stop):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a handler take the signals; outside the main thread, where none arrive, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
