"""How fast text is prepared beside the tokenizer alone, and in how much memory: `python tests/benchmarks/prepare.py`.

Both sides encode the same documents with the same tokenizer and the same threads, in turn, and the share is the median
over the rounds. The tokenizer alone gets its texts as a list in memory; preparation reads them from a file, leaves out
repetitions, holds some out, packs, writes and syncs. The same share of processor time, of all threads together, says
what a machine with other work cannot disturb. Memory is the peak of a process that prepares, for texts of
several sizes, beside that of a process that only imports what it takes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnkit.cli import answer
from attnkit.data import PretrainDataConfig, TokenizerConfig, load_tokenizer, python_docs, train_tokenizer
from attnkit.data.documents import Documents
from attnkit.data.objectives import ObjectiveConfig, objectives
from attnkit.data.prepared import write_prepared

TOGETHER = 2**12  # texts whose encodings are in memory at once, many times as large as they are


def write_text(path: Path, megabytes: float) -> list[str]:
    """Distinct documents of that size together: those of Python, each time with another number before them."""
    texts, size, turn = [], 0, 0
    sources = [text.replace("\n\n", "\n") for text in python_docs.documents()]
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            for text in sources:
                texts.append(f"{turn} {text}")
                size += file.write(f"{texts[-1]}\n\n")
            turn += 1
    return texts


class Clock:
    """Seconds since it was made, and those of them that processors worked."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.began[0], time.process_time() - self.began[1]


def prepare(source: Path, tokenizer_path: Path, folder: Path) -> tuple[float, float]:
    """Prepare a file and return the seconds that it took."""
    data = PretrainDataConfig(source=str(source), sequence_length=512)
    tokenizer = load_tokenizer(tokenizer_path)
    objective = objectives["causal"](tokenizer, ObjectiveConfig(), data=data)
    clock = Clock()
    write_prepared(folder, Documents(data), tokenizer, objective=objective, trained={})
    return clock.read()


def shares(folder: Path, *, megabytes: float, rounds: int) -> list[tuple[float, float]]:
    """The throughput of preparation over that of `encode_batch`, by the clock and by processor time, round by round."""
    texts = write_text(folder / "text.txt", megabytes)
    backend = load_tokenizer(folder / "tokenizer").backend_tokenizer
    found = []
    for number in range(rounds):
        clock = Clock()
        for start in range(0, len(texts), TOGETHER):
            backend.encode_batch(texts[start : start + TOGETHER], add_special_tokens=False)
        alone = clock.read()
        whole = prepare(folder / "text.txt", folder / "tokenizer", folder / f"rows-{number}")
        found.append((alone[0] / whole[0], alone[1] / whole[1]))
        print(f"  encode_batch {megabytes / alone[0]:.1f} MB/s, prepare {found[-1][0]:.2f} of that", flush=True)
    return found


def peak(folder: Path, megabytes: float) -> float:
    """The peak memory, in MB, of a process that prepares a file of that size; of 0 MB: that only imports."""
    if megabytes:
        write_text(folder / "large.txt", megabytes)
    command = [sys.executable, __file__, "--peak-of", str(folder / "large.txt"), str(folder / "tokenizer")]
    command.append(str(folder / f"rows-of-{megabytes}"))
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sizes", type=float, nargs="*", default=[0, 4, 32], help="MB of text, for the peaks of memory"
    )
    parser.add_argument("--peak-of", nargs=3, metavar=("TEXT", "TOKENIZER", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.peak_of:
        text, tokenizer, folder = chosen.peak_of
        if Path(text).exists():  # the whole command, as its user has it
            words = ["--data.source", text, "--tokenizer.path", tokenizer, "--data.sequence_length", "512"]
            answer(["prepare", *words, "--data.prepared", folder])
        # Not from getrusage, which counts what the parent held when it made this process.
        status = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_tokenizer(python_docs.documents(), TokenizerConfig(vocab_size=8192)).save_pretrained(folder / "tokenizer")
        found = shares(folder, megabytes=chosen.megabytes, rounds=chosen.rounds)
        for name, each in zip(("by the clock", "by processor time"), zip(*found, strict=True), strict=True):
            print(f"prepare / encode_batch {name}: {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")
        for size in chosen.sizes:
            print(f"peak with {size:g} MB of text: {peak(folder, size):.0f} MB")


if __name__ == "__main__":
    main()
