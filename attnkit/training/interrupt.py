"""A polite end: SIGTERM and SIGINT ask the loop to stop after the step it is in."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether a signal has asked this process to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, signum: int, frame: object) -> None:
        # Launchers pass on a Ctrl-C that the terminal has already sent, so a second signal must not end a save midway.
        self.asked = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Collect SIGTERM and SIGINT instead of dying of them; outside the main thread, where none arrive, do nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
