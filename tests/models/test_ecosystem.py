"""The models are ordinary models of transformers: compiled, exported, recomputed, adapted, trained and served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from attnkit import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForSeq2SeqLM,
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
)
from attnkit.errors import UsageError

SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32}
LANGUAGE = {"encoder": AttnKitForMaskedLM, "decoder": AttnKitForCausalLM, "encoder-decoder": AttnKitForSeq2SeqLM}


def build(architecture: str, **fields: Any) -> Any:
    return LANGUAGE[architecture](AttnKitConfig(**SIZES, architecture=architecture, **fields)).eval()


def arguments(architecture: str, length: int = 9) -> dict[str, Any]:
    ids = {"input_ids": torch.randint(3, 31, (2, length))}
    if architecture == "encoder-decoder":
        ids["decoder_input_ids"] = torch.randint(3, 31, (2, 5))
    return ids | ({} if architecture == "encoder" else {"use_cache": False})


@pytest.mark.parametrize("scorer", ["scaled_dot", "gaussian", "additive"])
@pytest.mark.parametrize("architecture", LANGUAGE)
@torch.no_grad()
def test_compiled_in_one_graph(architecture: str, scorer: str) -> None:
    torch.compiler.reset()
    model, inputs = build(architecture, scorer=scorer), arguments(architecture)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(**inputs).logits, model(**inputs).logits, atol=1e-5)


@pytest.mark.parametrize("architecture", LANGUAGE)
@torch.no_grad()
def test_exported(architecture: str) -> None:
    scorer = "additive" if architecture == "encoder-decoder" else "gaussian"
    model, inputs = build(architecture, scorer=scorer), arguments(architecture)
    exported = torch.export.export(model, (), inputs, strict=False)
    assert torch.allclose(exported.module()(**inputs).logits, model(**inputs).logits, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("architecture", LANGUAGE)
def test_recomputed_activations_give_the_same_gradients(architecture: str, reentrant: bool) -> None:
    model, inputs = build(architecture, position="t5").train(), arguments(architecture)
    labels = {"labels": inputs["decoder_input_ids" if architecture == "encoder-decoder" else "input_ids"]}
    model(**inputs, **labels).loss.backward()
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model(**inputs, **labels).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, before[name], atol=1e-6), name  # sums in another order


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("task", ["CAUSAL_LM", "SEQ_CLS", "SEQ_2_SEQ_LM"])
def test_low_rank_adapters_train(task: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    heads = {
        "CAUSAL_LM": ("decoder", AttnKitForCausalLM),
        "SEQ_CLS": ("encoder", AttnKitForSequenceClassification),
        "SEQ_2_SEQ_LM": ("encoder-decoder", AttnKitForSeq2SeqLM),
    }
    architecture, head = heads[task]
    body = head(AttnKitConfig(**SIZES, architecture=architecture, scorer="additive"))
    model = get_peft_model(body, LoraConfig(r=2, target_modules="all-linear", task_type=task))
    ids = torch.randint(3, 31, (2, 7))
    model(input_ids=ids, labels=torch.tensor([0, 1]) if task == "SEQ_CLS" else ids).loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name in trained if ".lora_" in name}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    assert all(parameter.grad is not None for parameter in trained.values())
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("architecture", LANGUAGE)
def test_one_step_of_the_trainer(architecture: str, tmp_path: Path) -> None:
    start = {"decoder_start_token_id": 1} if architecture == "encoder-decoder" else {}
    model = build(architecture, scorer="cosine", **start).train()
    before = model.lm_head.weight.detach().clone()
    rows = [{"input_ids": list(range(3, 12)), "labels": list(range(3, 12))}] * 4
    options = TrainingArguments(tmp_path, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, save_steps=1)
    result = Trainer(model=model, args=options, train_dataset=Dataset.from_list(rows)).train()
    assert result.global_step == 1
    assert not torch.equal(before, model.lm_head.weight)
    saved = LANGUAGE[architecture].from_pretrained(tmp_path / "checkpoint-1")
    assert torch.equal(saved.lm_head.weight, model.lm_head.weight)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "mask_token": "<mask>",
        "unk_token": "<unk>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=plain, **special)


def test_pipelines(tokenizer: PreTrainedTokenizerFast) -> None:
    """Every pipeline of transformers for a text alone; it has none for answers, choices and texts from texts."""
    options = {"max_new_tokens": 3, "do_sample": False}
    written = pipeline("text-generation", build("decoder"), tokenizer=tokenizer)("a b c", **options)
    assert written[0]["generated_text"].startswith("a b c")
    assert len(pipeline("fill-mask", build("encoder"), tokenizer=tokenizer)("a <mask> c", top_k=4)) == 4
    labels = ("contradiction", "neutral", "entailment")
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    config = AttnKitConfig(**SIZES, architecture="encoder", **names)
    head = AttnKitForSequenceClassification(config)
    classified = pipeline("text-classification", head, tokenizer=tokenizer)(["a", "b c"])
    assert {row["label"] for row in classified} <= set(labels)
    chosen = pipeline("zero-shot-classification", head, tokenizer=tokenizer)("a b", candidate_labels=["c", "d"])
    assert sorted(chosen["labels"]) == ["c", "d"]
    tagged = pipeline("token-classification", AttnKitForTokenClassification(config), tokenizer=tokenizer)("a b c")
    assert {row["word"] for row in tagged} <= set("abc")
    (states,) = pipeline("feature-extraction", head.model, tokenizer=tokenizer)("a b c")
    assert torch.tensor(states).shape == (3, 24)


@pytest.mark.parametrize("architecture", LANGUAGE)
@torch.no_grad()
def test_half_precision(architecture: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for scorer in ("scaled_dot", "gaussian", "additive"):
            model = build(architecture, scorer=scorer)
            inputs = arguments(architecture)
            full = model(**inputs).logits
            half = model.to(dtype)(**inputs).logits
            assert half.dtype == dtype
            assert (half.float() - full).abs().max() < 0.05 * full.abs().max() + 0.01


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("architecture", "shared"), [*((name, True) for name in LANGUAGE), ("encoder-decoder", False)])
@torch.no_grad()
def test_a_vocabulary_grows_and_shrinks(architecture: str, shared: bool, tied: bool, tmp_path: Path) -> None:
    apart = {} if shared else {"share_encoder_decoder_embeddings": False}
    model, inputs = build(architecture, tie_word_embeddings=tied, **apart), arguments(architecture)
    before = model(**inputs).logits
    for size in (40, 31):
        model.resize_token_embeddings(size, mean_resizing=False)
        assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == size
        after = model(**inputs).logits
        assert after.shape[-1] == size
        assert torch.allclose(after[..., :31], before, atol=1e-6)
        model.save_pretrained(tmp_path / str(size))
        again = type(model).from_pretrained(tmp_path / str(size)).eval()
        assert torch.allclose(again(**inputs).logits, after, atol=1e-6)
    embedding = model.get_input_embeddings() if shared else model.model.decoder.get_input_embeddings()
    assert (model.lm_head.weight is embedding.weight) is tied


def test_padding_keeps_its_row() -> None:
    config = AttnKitConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, pad_token_id=20)
    model = AttnKitForCausalLM(config)
    with pytest.raises(UsageError, match="new_num_tokens 20 leaves no row for pad_token_id 20: keep more than 20"):
        model.resize_token_embeddings(20)
    assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == 31
    model.resize_token_embeddings(21)
    assert model.get_input_embeddings().num_embeddings == 21


@torch.no_grad()
def test_eight_bit_weights(tmp_path: Path) -> None:
    from transformers import QuantoConfig

    for architecture in LANGUAGE:
        model, inputs = build(architecture, scorer="gaussian"), arguments(architecture)
        model.save_pretrained(tmp_path / architecture)
        config = QuantoConfig(weights="int8")
        small = LANGUAGE[architecture].from_pretrained(tmp_path / architecture, quantization_config=config)
        full = model(**inputs).logits
        assert (small(**inputs).logits - full).abs().max() < 0.02 * full.abs().max()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")  # of trl's own
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.slow
def test_one_step_of_supervised_fine_tuning(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    model = build("decoder", scorer="gaussian").train()
    before = model.lm_head.weight.detach().clone()
    options = SFTConfig(str(tmp_path), max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, bf16=False)
    rows = Dataset.from_list([{"text": "a b c d e f"}] * 4)
    SFTTrainer(model=model, args=options, train_dataset=rows, processing_class=tokenizer).train()
    assert not torch.equal(before, model.lm_head.weight)


@pytest.mark.parametrize("scorer", ["scaled_dot", "gaussian"])
def test_groups_that_a_quantised_cache_cannot_make_are_said(scorer: str) -> None:
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20}
    model = AttnKitForCausalLM(AttnKitConfig(**sizes, scorer=scorer, pad_token_id=0)).eval()
    ids = torch.randint(1, 20, (1, 7))
    said = "cannot divide the 24 numbers of a token's keys .*: give cache_config={'backend': 'fp8'}"
    with pytest.raises(UsageError, match=said):
        model.generate(ids, max_new_tokens=3, cache_implementation="quantized")
    options = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    assert model.generate(ids, max_new_tokens=3, eos_token_id=None, **options).shape == (1, 10)
