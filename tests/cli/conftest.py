"""A small text and a small run on it, made once: what the verbs are tried on."""

from pathlib import Path

import pytest
from command_line import Cli, sentences

from attnkit.cli import main


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(sentences(300, seed=0)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def config(text: Path) -> Path:
    """A run small enough for a test; each test gives its own `training.output_dir`."""
    path = text.with_name("small.yaml")
    path.write_text(
        f"""
model: {{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, scorer: gaussian, position: learned}}
tokenizer: {{vocab_size: 290}}
data: {{source: {text}, sequence_length: 24, held_out_fraction: 0.2}}
training:
  max_steps: 6
  per_device_batch_size: 4
  learning_rate: 1e-2
  warmup_steps: 2
  eval_steps: 3
  save_steps: 3
  log_steps: 3
tracking: {{progress: false}}
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="session")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["pretrain", "--config", str(config), "--training.output_dir", str(folder)]) == 0
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process: exit code, lines of stdout, lines of stderr."""

    def run(*arguments: str | Path) -> tuple[int, list[str], list[str]]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return run
