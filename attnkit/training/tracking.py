"""What a run says while it runs: progress bar, JSONL log, trackers."""

import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attnkit.errors import UsageError, nearest
from attnkit.files.disk import replacing
from attnkit.files.text import json_text, read_text
from attnkit.training.run_folder import LOG, writing

if TYPE_CHECKING:  # heavy, and `config.py` reads the settings of this file
    from accelerate import Accelerator

BITS = "bits_per_byte"
TRACKERS = ("tensorboard", "wandb", "trackio")  # names for Accelerate, and of the packages behind them


@dataclass(kw_only=True)
class TrackingConfig:
    """Where the figures of a run go, besides the JSONL log that is always written."""

    trackers: list[str] = field(default_factory=list)
    """Accelerate trackers: `tensorboard`, `wandb`, `trackio` (extra `tracking`)."""
    project: str = "attnkit"
    """Name under which trackers file the run."""
    progress: bool = True
    """Show a progress bar on the main process; a line per `training.log_steps` where the output is no terminal."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        return tracker_problems(self.trackers)


def tracker_problems(trackers: Sequence[str]) -> list[str]:
    """A line for each tracker that is unknown or not installed."""
    found = []
    for name in trackers:
        if name not in TRACKERS:
            found.append(f"tracking.trackers: unknown tracker {name!r}: {nearest(name, TRACKERS)}")
        elif importlib.util.find_spec(name) is None:
            found.append(
                f"tracking.trackers: {name} needs the package {name!r}; install the extra: pip install "
                "'attnkit[tracking]'"
            )
    return found


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise `UsageError` for trackers that are unknown or not installed, all of them at once."""
    problems = tracker_problems(trackers)
    if problems:
        raise UsageError("; ".join(problems))


class Tracker:
    """Takes the figures of a run and shows, writes and sends them. Only the main process does any of it.

    Use it as a context: `with Tracker(...) as tracker: train(..., tracker=tracker)`. `run` is the resolved config,
    which trackers file with the figures. Raises `UsageError` for an unknown or missing tracker.
    """

    def __init__(
        self,
        output_dir: str | Path,
        *,
        tracking: TrackingConfig,
        accelerator: "Accelerator",
        run: Mapping[str, Any] | None = None,
    ) -> None:
        check_trackers(tracking.trackers)
        self.log_path = Path(output_dir) / LOG
        self._accelerator = accelerator
        self._project = tracking.project
        self._run = _flat(run or {})
        self._main = accelerator.is_main_process
        self._console = Console()
        self._bar: Progress | None = None
        if self._main and tracking.progress and self._console.is_terminal:
            self._bar = _bar(self._console)
        self._lines = self._main and tracking.progress and self._bar is None
        self._log: TextIO | None = None
        self._max_steps = 0
        self._sending = bool(tracking.trackers)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._log is not None:
            self._log.close()

    def start(self, *, step: int, max_steps: int) -> None:
        """Begin at a step: the log keeps what was written up to it, so a resumed run has one record per event."""
        self._max_steps = max_steps
        self._start_step, self._start_time = step, time.monotonic()
        if self._sending:
            self._accelerator.init_trackers(self._project, config=self._run)
        if not self._main:
            return
        with writing(self.log_path):
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            kept = [record for record in read_log(self.log_path) if record["step"] <= step] if step else []
            with replacing(self.log_path) as fresh:
                fresh.write_text("".join(_line(record) for record in kept), encoding="utf-8")
            self._log = self.log_path.open("a", encoding="utf-8")
        if self._bar is not None:
            self._task = self._bar.add_task("train", total=max_steps, completed=step, loss="", said="", held_out="")
            self._bar.start()

    def step(self, step: int, loss: float) -> None:
        """Move the progress bar after an optimizer step."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, loss=f"loss {loss:.4f}")

    def train(self, step: int, figures: Mapping[str, float]) -> None:
        """Record figures of training, those of `said_of` among them, and the seconds that are left (`eta`)."""
        eta = (time.monotonic() - self._start_time) / (step - self._start_step) * (self._max_steps - step)
        self._record("train", step, {**figures, "eta": eta})
        said = said_of(figures)
        if self._bar is not None:
            self._bar.update(self._task, said=said)
        if self._lines:
            left = f"ETA {int(eta) // 60}:{int(eta) % 60:02d}"
            self.note(f"step {step}/{self._max_steps}  loss {figures['loss']:.4f}  {said}  {left}")

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an evaluation."""
        self._record("eval", step, metrics)
        if self._bar is not None or self._lines:
            said = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            if self._bar is not None and BITS in metrics:
                self._bar.update(self._task, held_out=f"{metrics[BITS]:.3f} bits/byte")
            self.note(f"step {step}/{self._max_steps}  held-out {said}")

    def stop(self, step: int, metrics: Mapping[str, float], *, best_step: int | None, reason: str) -> None:
        """Record that a run is over before its time, at an evaluation with these metrics, and say why."""
        self._log_record("stop", step, {"loss": metrics.get("loss"), "best_step": best_step})
        self.note(f"stopped {reason}")

    def announce(self, text: str) -> None:
        """Say a line where progress is shown."""
        if self._bar is not None or self._lines:
            self.note(text)

    def note(self, text: str) -> None:
        """Say a line, above the progress bar if there is one."""
        if self._main:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _log_record(self, kind: str, step: int, figures: Mapping[str, float | None]) -> None:
        if self._log is not None:
            with writing(self.log_path):
                self._log.write(_line({"kind": kind, "step": step, **figures}))
                self._log.flush()

    def _record(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        self._log_record(kind, step, figures)
        if self._sending:
            self._accelerator.log({f"{kind}/{name}": value for name, value in figures.items()}, step=step)


def said_of(figures: Mapping[str, float]) -> str:
    """How fast and how well a run learns, in a few words."""
    mfu = f"  MFU {figures['mfu']:.1%}" if "mfu" in figures else ""
    return (
        f"lr {figures['learning_rate']:.2e}  |g| {figures['grad_norm']:.2f}  {figures['tokens_per_second']:,.0f} "
        f"tokens/s{mfu}  {figures['memory'] / 2**30:.1f} GiB"
    )


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The records of a `log.jsonl`; a last line that a crash cut short is left out. No file, no records.

    Raises `UsageError` for a line that is damaged.
    """
    path = Path(path)
    if not path.exists():
        return []
    return [_record_in(line, f"{path}:{number}") for number, line in enumerate(read_text(path).split("\n")[:-1], 1)]


def _record_in(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not {"kind", "step", "loss"} <= record.keys():
        raise UsageError(f"{place}: is no record of a step: the file is damaged; correct or remove this line")
    return record


def _line(record: Mapping[str, Any]) -> str:
    """One record as a line of JSON."""
    return json_text(record) + "\n"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`, with values that every tracker takes."""
    flat: dict[str, int | float | str | bool] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in ("loss", "held_out", "said")),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,  # drawing takes the interpreter's lock from the loop
        expand=True,
    )
