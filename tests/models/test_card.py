"""The card of a saved model."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.attention import scorers
from attnkit.config.runs import PretrainRun
from attnkit.models.auto import AUTO_CLASSES
from attnkit.models.card import read_training
from attnkit.models.remote_code import save_with_code
from attnkit.recipes.folder import save_model

SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ARCHITECTURE = {"AutoModelForMaskedLM": "encoder", "AutoModelForPreTraining": "encoder"}
ARCHITECTURE |= {"AutoModelForSeq2SeqLM": "encoder-decoder"}


@pytest.mark.parametrize("auto_class", AUTO_CLASSES, ids=lambda auto: auto.__name__)
def test_every_head_is_saved_with_its_card(auto_class: Any, tmp_path: Path) -> None:
    architecture, head = ARCHITECTURE.get(auto_class.__name__, "decoder"), AUTO_CLASSES[auto_class]
    pooler = architecture == "encoder"
    model = head(AttnKitConfig(**SIZES, architecture=architecture, scorer="gaussian", pooler=pooler, pad_token_id=0))
    model.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["attnkit", architecture, "gaussian"]
    assert card.data.pipeline_tag == head.pipeline_tag
    assert f"| parameters | {model.num_parameters():,} |" in card.text
    assert "score(q, k) = -‖w ⊙ (q - k)‖² / 2" in card.text
    assert f"{head.__name__}.from_pretrained(folder)" in card.text


def test_layers_and_options_are_told_apart(tmp_path: Path) -> None:
    layers: list[Any] = ["dot", {"cosine": {"temperature": "fixed"}}]
    config = AttnKitConfig(**SIZES, layer_scorers=layers, pattern="sliding_window", pattern_options={"window": 3})
    AttnKitForCausalLM(config).save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| scorer | `dot`, `cosine` (temperature fixed) |" in text
    assert "| pattern | `sliding_window` (window 3) |" in text


def test_a_card_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("My own words.", encoding="utf-8")
    AttnKitForCausalLM(AttnKitConfig(**SIZES)).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "My own words."


def test_a_scorer_of_ones_own_says_what_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Own", (scorers["dot"],), {"__module__": "my_scorers", "__doc__": "q · k, once more."})
    monkeypatch.setitem(scorers, "own", own)
    AttnKitForCausalLM(AttnKitConfig(**SIZES, scorer="own")).save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "import my_scorers  # registers Own" in text
    assert "q · k, once more." in text


def test_training_is_told_and_goes_along(tmp_path: Path) -> None:
    run = PretrainRun()
    run.training.output_dir, run.data.source = str(tmp_path), "texts/*.txt"
    (tmp_path / "checkpoints").mkdir()
    model = AttnKitForCausalLM(AttnKitConfig(**SIZES))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    summary = {"model": "here", "steps": 3, "text": {"tokens": 12345}, "held_out": {"nats_per_token": 4.5}}
    save_model(run, model, tokenizer=tokenizer, summary=summary)
    section = read_training(tmp_path / "model")
    assert section is not None
    for row in ("| data.source | texts/*.txt |", "| text.tokens | 12,345 |", "| held_out.nats_per_token | 4.5 |"):
        assert row in section
    save_with_code(model, tmp_path / "exported", training=section)
    assert read_training(tmp_path / "exported") == section
    text = (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    assert "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)" in text
    model.save_pretrained(tmp_path / "untold")
    assert read_training(tmp_path / "untold") is None
