"""How fast text is prepared beside the tokenizer alone, and in how much memory: `python tests/benchmarks/prepare.py`.

Both sides encode the same documents with the same tokenizer and the same threads, in turn, and the share is the median
over the rounds. The tokenizer alone gets its texts as a list in memory; preparation reads them from a file, leaves out
repetitions, holds some out, packs, writes and syncs. Memory is the peak of a process that prepares, for texts of
several sizes, beside that of a process that only imports what it takes.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnkit.data import PretrainDataConfig, TokenizerConfig, load_tokenizer, python_docs, train_tokenizer
from attnkit.data.documents import Documents
from attnkit.data.objectives import ObjectiveConfig, objectives
from attnkit.data.prepared import write_prepared


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


def prepare(source: Path, tokenizer_path: Path, folder: Path) -> float:
    """Prepare a file and return the seconds that it took."""
    data = PretrainDataConfig(source=str(source), sequence_length=512)
    tokenizer = load_tokenizer(tokenizer_path)
    objective = objectives["causal"](tokenizer, ObjectiveConfig(), data=data)
    began = time.perf_counter()
    write_prepared(folder, Documents(data), tokenizer, objective=objective, trained={})
    return time.perf_counter() - began


def shares(folder: Path, *, megabytes: float, rounds: int) -> list[float]:
    """The throughput of preparation over that of `encode_batch`, round by round."""
    texts = write_text(folder / "text.txt", megabytes)
    backend = load_tokenizer(folder / "tokenizer").backend_tokenizer
    found = []
    for number in range(rounds):
        began = time.perf_counter()
        backend.encode_batch(texts, add_special_tokens=False)
        alone = time.perf_counter() - began
        found.append(alone / prepare(folder / "text.txt", folder / "tokenizer", folder / f"rows-{number}"))
        print(f"  encode_batch {megabytes / alone:.1f} MB/s, prepare {found[-1]:.2f} of that", flush=True)
    return found


def peak(folder: Path, megabytes: float) -> float:
    """The peak memory, in MB, of a process that prepares a file of that size; of 0 MB: that only imports."""
    if megabytes:
        write_text(folder / "large.txt", megabytes)
    command = [sys.executable, __file__, "--peak-of", str(folder / "large.txt"), str(folder / "tokenizer")]
    command.append(str(folder / f"rows-of-{megabytes}"))
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


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
        if Path(chosen.peak_of[0]).exists():
            prepare(*map(Path, chosen.peak_of))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_tokenizer(python_docs.documents(), TokenizerConfig(vocab_size=8192)).save_pretrained(folder / "tokenizer")
        found = shares(folder, megabytes=chosen.megabytes, rounds=chosen.rounds)
        print(f"prepare / encode_batch: {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        for size in chosen.sizes:
            print(f"peak with {size:g} MB of text: {peak(folder, size):.0f} MB")


if __name__ == "__main__":
    main()
