"""What labels of generated texts are, what is masked, and that writing does not depend on the batch."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import attnkit
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.errors import UsageError
from attnkit.recipes.finetune import predicts
from attnkit.tasks import ExamplesConfig, TaskConfig, make_task
from attnkit.tasks.fields import Field
from attnkit.tasks.generation import frequency_likelihoods
from attnkit.tasks.instruction import read_messages

TEXT = "user: assistant: what is a cat? an animal. the dog ran home and it sat on the mat."
END = 2
SIZE = {"vocab_size": 290, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": END, "eos_token_id": END}
TURNS = [
    {"role": "user", "content": "what is a cat?"},
    {"role": "assistant", "content": "an animal."},
    {"role": "user", "content": "and the dog?"},
    {"role": "assistant", "content": "it ran home"},
]


@pytest.fixture
def tokenizer() -> Any:
    return train_tokenizer([TEXT] * 4, TokenizerConfig(vocab_size=290))


def task_of(name: str, tokenizer: Any, **options: Any) -> Any:
    task = make_task(TaskConfig(name=name, options=options), ExamplesConfig())
    task.prepare_tokenizer(tokenizer)
    return task


def seq2seq(tokenizer: Any, **options: Any) -> tuple[Any, Any]:
    task = task_of("sequence_to_sequence", tokenizer, **options)
    torch.manual_seed(0)
    config = attnkit.AttnKitConfig(**SIZE, **SPECIAL, architecture="encoder-decoder", initializer_range=0.5)
    model = attnkit.AttnKitForSeq2SeqLM(config).eval()
    task.prepare_model(model, [])
    return task, model


# ------------------------------------------------------------------------------------------- sequence to sequence


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        ([7, 8], [7, 8, END]),
        ([7, 8, END], [7, 8, END]),
        ([END, 7, 8, END], [7, 8, END]),  # a start token that the tokenizer puts there would be there twice
        ([7, 8, 9, 10, 11, 12], [7, 8, 9, 10, END]),
    ],
)
def test_labels_end_with_one_end_and_carry_no_start(tokenizer: Any, tokens: list[int], labels: list[int]) -> None:
    task, model = seq2seq(tokenizer, max_target_tokens=5)
    assert model.config.decoder_start_token_id == END
    assert task.labels(tokens) == labels


def test_the_decoder_reads_one_start_token(tokenizer: Any) -> None:
    from attnkit.models.language import shift_right

    task, model = seq2seq(tokenizer)
    (row,) = task.encode([{"text": "the dog", "target": "an animal."}], tokenizer, max_length=16)
    shifted = shift_right(torch.tensor([row["labels"]]), model.config)
    assert shifted[0].tolist() == [END, *row["labels"][:-1]]
    assert shifted[0].tolist().count(END) == 1


def test_texts_and_targets_that_are_cut_are_counted(tokenizer: Any) -> None:
    task, _ = seq2seq(tokenizer, prefix="sum: ", max_target_tokens=4)
    examples = [{"text": "a", "target": "a"}, {"text": TEXT, "target": "a"}, {"text": "a", "target": TEXT}]
    rows = task.encode(examples, tokenizer, max_length=12)
    assert [(row["cut"], row["target_cut"]) for row in rows] == [(False, False), (True, False), (False, True)]
    assert task.notes(rows, sequence_length=12) == [
        "1 of 3 texts are longer than data.sequence_length: 12 and were cut",
        "1 of 3 targets are longer than task.options.max_target_tokens: 4 and were cut",
    ]
    assert tokenizer.decode(rows[0]["input_ids"]) == "sum: a"
    assert max(len(row["labels"]) for row in rows) == 4


@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_is_written_does_not_depend_on_the_batch(tokenizer: Any, num_beams: int) -> None:
    task, model = seq2seq(tokenizer, max_target_tokens=6, num_beams=num_beams)
    texts = ["the dog", TEXT, "a cat and a mat", "it"]
    rows = task.encode([{"text": text, "target": "a"} for text in texts], tokenizer, max_length=32)

    def answers(rows: list[Any]) -> list[Any]:
        batch = task.collator(tokenizer)(rows)
        with torch.no_grad():
            return task.outcomes(rows, batch=batch, output=model(**batch), model=model)

    together, alone = answers(rows), [answers([row])[0] for row in rows]
    assert [it["prediction"] for it in together] == [it["prediction"] for it in alone]
    for one, other in zip(together, alone, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-3)
        assert one["likelihood"]["nats"] == pytest.approx(other["likelihood"]["nats"], rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 3, "length_penalty": 2.0}])
@pytest.mark.parametrize("own", [{}, {"num_beams": 2, "early_stopping": True, "no_repeat_ngram_size": 2}])
def test_what_is_written_is_what_the_model_generates_with_the_same_options(
    tokenizer: Any, options: dict[str, Any], own: dict[str, Any]
) -> None:
    task, model = seq2seq(tokenizer, max_target_tokens=6, **options)
    model.generation_config.update(**own)
    rows = task.encode([{"text": "a cat and a mat", "target": "a"}], tokenizer, max_length=32)
    batch = task.collator(tokenizer)(rows)
    with torch.no_grad():
        said = task.outcomes(rows, batch=batch, output=model(**batch), model=model)[0]["prediction"]
    asked = {name: batch[name] for name in ("input_ids", "attention_mask")}
    tokens = model.generate(**asked, max_new_tokens=6, **options)
    assert said == tokenizer.decode(tokens[0], skip_special_tokens=True).strip()


def test_the_probability_of_a_text_is_that_of_its_tokens(tokenizer: Any) -> None:
    task, model = seq2seq(tokenizer, max_target_tokens=6)
    (row,) = task.encode([{"text": "the dog", "target": "a"}], tokenizer, max_length=16)
    batch = task.collator(tokenizer)([row])
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    ((_, probability),) = task.writing.write(model, tokenizer, **inputs)
    tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)[:, 1:]
    with torch.no_grad():
        logits = model(**inputs, labels=tokens).logits.log_softmax(-1)
    expected = logits.gather(-1, tokens[..., None]).sum().exp().item()
    assert probability == pytest.approx(expected, rel=1e-4)


def test_a_tokenizer_without_an_end_is_refused(tokenizer: Any) -> None:
    tokenizer.eos_token = None
    for name in ("sequence_to_sequence", "instruction"):
        with pytest.raises(UsageError, match=r"tokenizer\.path: it has no eos_token to end"):
            task_of(name, tokenizer)
    for options in ({"num_beams": 0}, {"max_new_tokens": 0}):
        with pytest.raises(UsageError, match=r"task\.options\..* must be (1 or more|from 1 to 1000)"):
            make_task(TaskConfig(name="instruction", options=options), ExamplesConfig())


# ---------------------------------------------------------------------------------------------------- instruction


def test_the_baseline_of_likelihoods_knows_how_often_tokens_are_labels() -> None:
    train = [{"labels": [-100, 7, 7, 8]}, {"labels": [7, -100]}]
    one, other = frequency_likelihoods(train, [{"labels": [-100, 7, 8]}, {"labels": [9]}], vocab_size=6)
    # Laplace: 3, 1 and 0 of 4 labels, one more of each of the 6 tokens.
    assert (one["tokens"], one["correct"], other["tokens"], other["correct"]) == (2, 1, 1, 0)
    assert (one["nats"], other["nats"]) == pytest.approx((-math.log(4 / 10) - math.log(2 / 10), -math.log(1 / 10)))


def test_only_answers_are_predicted(tokenizer: Any) -> None:
    task = task_of("instruction", tokenizer)
    row = task.row(TURNS, max_length=200)
    labelled = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert tokenizer.decode(labelled) == " an animal.<|endoftext|> it ran home<|endoftext|>"
    assert [label for label in row["labels"] if label != -100] == labelled
    prompt = tokenizer.decode(row["prompt"])
    assert prompt.endswith("user: and the dog?\nassistant:")
    assert tokenizer.decode(row["input_ids"]).startswith(prompt)


def test_a_prompt_that_fills_the_row_leaves_nothing_to_predict(tokenizer: Any) -> None:
    task = task_of("instruction", tokenizer)
    rows = task.encode(
        [{"text": TEXT * 3, "target": "a cat"}, {"text": "cat?", "target": "a cat"}], tokenizer, max_length=30
    )
    assert [predicts(row) for row in rows] == [False, True]
    assert rows[0]["cut"]


def test_a_template_that_does_not_nest_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(UsageError, match=r"tokenizer\.path: its chat_template writes the beginning .* otherwise"):
        task_of("instruction", tokenizer).row(TURNS, max_length=100)


def test_a_template_that_ends_no_answer_is_said(tokenizer: Any) -> None:
    ending = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}%s\n{% endfor %}"
    said = []
    for end in ("", "{{ eos_token }}"):
        tokenizer.chat_template = ending.replace("%s", end) + "{% if add_generation_prompt %}assistant:{% endif %}"
        task = task_of("instruction", tokenizer)
        said.append(task.notes([task.row(TURNS, max_length=200)], sequence_length=200))
    open_ended, ended = said
    assert ended == []
    assert [note for note in open_ended if note.startswith("1 of 1 answers do not end with '<|endoftext|>'")]


def test_a_template_that_takes_no_such_conversation_says_why(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(
        UsageError, match=r"chat_template takes no conversation of user.* \(roles must alternate\): order"
    ):
        task_of("instruction", tokenizer).row(TURNS, max_length=100)


def test_instruction_and_input_are_one_message(tokenizer: Any) -> None:
    task = make_task(TaskConfig(name="instruction", text_pair_column="input"), ExamplesConfig())
    asked = task.messages({"text": "Sum up.", "text_pair": "A text.", "target": "T"})
    assert asked == [{"role": "user", "content": "Sum up.\n\nA text."}, {"role": "assistant", "content": "T"}]
    assert task.messages({"text": "Sum up.", "text_pair": " "})[0]["content"] == "Sum up."
    task = make_task(TaskConfig(name="instruction", options={"messages_column": "turns"}), ExamplesConfig())
    assert task.fields()["messages"] == Field(
        column="turns", setting="task.options.messages_column", read=read_messages
    )
    assert "column 'turns': the last message is no text of the" in next(task.check({"messages": TURNS[:3]})).before
    assert read_messages(("a:1", {"turns": json.dumps(TURNS)}), "turns") == TURNS
    for wrong in ([], "[]", [{"role": "cat", "content": "x"}], [{"role": "user"}]):
        with pytest.raises(UsageError, match=r"a:1: column 'turns' holds .*message"):
            read_messages(("a:1", {"turns": wrong}), "turns")


@pytest.mark.parametrize("settings", [{"label_column": "answer"}, {"text_pair_column": "input"}])
def test_columns_beside_a_whole_conversation_are_refused(settings: dict[str, Any]) -> None:
    task = TaskConfig(name="instruction", options={"messages_column": "turns"}, **settings)
    with pytest.raises(UsageError, match=rf"task.{next(iter(settings))} is not read where .*messages_column"):
        make_task(task, ExamplesConfig())


def test_answers_are_written_after_prompts_of_unequal_length(tokenizer: Any) -> None:
    task = task_of("instruction", tokenizer, max_new_tokens=5)
    torch.manual_seed(0)
    model = attnkit.AttnKitForCausalLM(attnkit.AttnKitConfig(**SIZE, **SPECIAL, initializer_range=0.5)).eval()
    rows = task.encode([{"text": text} for text in ("cat?", "what is a cat and a dog?")], tokenizer, max_length=60)
    together = task.write(rows, model=model)
    alone = [task.write([row], model=model)[0] for row in rows]
    assert [text for text, _ in together] == [text for text, _ in alone]
    assert [value for _, value in together] == pytest.approx([value for _, value in alone], rel=1e-3)


def test_a_row_of_any_size_has_room_for_prompt_and_answer(tokenizer: Any) -> None:
    task = task_of("instruction", tokenizer)
    for max_length, room in ((30, 15), (64, 32), (400, 64)):
        (row,) = task.encode([{"text": TEXT * 20}], tokenizer, max_length=max_length)
        assert (row["room"], len(row["prompt"])) == (room, max_length - room)
        (note,) = task.notes([row], sequence_length=max_length)
        assert re.match(
            rf"1 of 1 prompts are longer than data.sequence_length: {max_length} without the {room} of", note
        )
    with pytest.raises(UsageError, match=r"task\.options\.max_new_tokens: 30 leaves no room for a prompt in rows of"):
        task_of("instruction", tokenizer, max_new_tokens=30).encode([{"text": TEXT}], tokenizer, max_length=30)
    config = attnkit.AttnKitConfig(**SIZE, **SPECIAL, max_position_embeddings=40)
    task.prepare_model(attnkit.AttnKitForCausalLM(config), [])
    assert task.code().endswith('print(ask([{"role": "user", "content": "an instruction"}], max_new_tokens=20))')


def test_targets_are_no_longer_than_the_model_has_positions(tokenizer: Any) -> None:
    task = task_of("sequence_to_sequence", tokenizer)
    config = attnkit.AttnKitConfig(**SIZE, **SPECIAL, architecture="encoder-decoder", max_position_embeddings=24)
    model = attnkit.AttnKitForSeq2SeqLM(config)
    task.prepare_model(model, [])
    (row,) = task.encode([{"text": "a", "target": TEXT * 5}], tokenizer, max_length=16)
    assert len(row["labels"]) == 24
    task = task_of("sequence_to_sequence", tokenizer, max_target_tokens=25)
    with pytest.raises(UsageError, match=r"task\.options\.max_target_tokens: 25 is more than model\.max_position_emb"):
        task.prepare_model(model, [])


def test_all_rows_without_labels_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from attnkit.cli import main

    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"{TEXT * 3} {number}", "label": "a"} for number in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ["finetune", "--task.name", "instruction", "--data.source", path, "--data.sequence_length", 24]
    words += ["--training.output_dir", tmp_path / "run", "--tokenizer.vocab_size", 280, "--data.held_out_fraction", 0.3]
    assert main([str(word) for word in words]) == 2
    assert "data.source: nothing that is to be predicted is left of its 4 rows in data.seq" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
