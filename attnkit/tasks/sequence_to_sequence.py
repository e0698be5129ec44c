"""A text from a text, by an encoder and a decoder: summaries, translations, glosses."""

from collections.abc import Sequence
from typing import Any, final

from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.errors import UsageError
from attnkit.models.checks import num_positions
from attnkit.tasks.base import Answer, Task, TaskConfig, tasks
from attnkit.tasks.examples import Example, ExamplesConfig
from attnkit.tasks.fields import Field, text
from attnkit.tasks.generation import Writing, likelihoods
from attnkit.tasks.rows import Row, tokenize


@tasks.register("sequence_to_sequence")
@final
class SequenceToSequence(Task):
    """p(target | text) = Π p(token | text, tokens before it), judged by what is written for a text.

    `prefix` stands before every text. Targets are cut at `max_target_tokens`, which is also how much is written;
    null makes it 64, or as many as the model has positions.
    Writing takes the likeliest token each time, or with `num_beams` the best of so many beams, whose score is divided
    by length^`length_penalty`; where these are null, the generation config of the model says them, as it says all else.
    Labels end with the end token and carry no start token: the model puts its own in front.
    """

    auto_class = AutoModelForSeq2SeqLM
    judged = {"text": "prediction", "likelihood": "likelihood"}
    usual_metrics = ("rouge1", "rouge2", "rougeL", "chrf")
    guess = "the commonest target, tokens by frequency"
    is_generated = True

    def __init__(
        self,
        task: TaskConfig,
        data: ExamplesConfig,
        *,
        prefix: str = "",
        max_target_tokens: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
    ) -> None:
        super().__init__(task, data)
        self.prefix = prefix
        self.writing = Writing(
            max_new_tokens=max_target_tokens,
            limit="max_target_tokens",
            num_beams=num_beams,
            length_penalty=length_penalty,
        )
        self.max_target_tokens = self.writing.num_tokens(None)

    def fields(self) -> dict[str, Field]:
        return {
            "text": Field(column=self.data.text_column, setting="data.text_column", read=text),
            "target": Field(column=self.task.label_column, setting="task.label_column", read=text, is_answer=True),
        }

    def texts(self, examples: Sequence[Example]) -> list[str]:
        return [example[role] for example in examples for role in ("text", "target")]

    def describe(self) -> str:
        return "a text"

    def code(self) -> str:
        return (
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            "model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)\n"
            f'inputs = tokenizer({self.prefix + "a text"!r}, return_tensors="pt")\n'
            'inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}\n'
            f"written = model.generate(**inputs, max_new_tokens={self.max_target_tokens})\n"
            "print(tokenizer.decode(written[0], skip_special_tokens=True))"
        )

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise UsageError("tokenizer.path: it has no eos_token to end a target with: add one")
        self.tokenizer = tokenizer

    def prepare_model(self, model: PreTrainedModel, train: Sequence[Example]) -> None:
        # Some of the configs of transformers have no such field while nobody sets it.
        if vars(model.config).get("decoder_start_token_id") is None:
            raise UsageError("model.decoder_start_token_id: the decoder has no token to start with: set it")
        self.start = model.config.decoder_start_token_id
        positions = num_positions(model.config)
        self.max_target_tokens = self.writing.num_tokens(positions)
        if positions is not None and self.max_target_tokens > positions:
            raise UsageError(
                f"task.options.max_target_tokens: {self.max_target_tokens} is more than model.max_position_embeddings: "
                f"{positions}: lower the one, or raise the other"
            )

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        rows = tokenize(tokenizer, [self.prefix + example["text"] for example in examples], max_length=max_length)
        for row, example in zip(rows, examples, strict=True):
            if "target" not in example:
                row["decoder_input_ids"] = [self.start]
                continue
            token_ids = tokenizer(text_target=example["target"])["input_ids"]
            row["labels"] = self.labels(token_ids)
            row["target_cut"] = len(token_ids) > self.max_target_tokens
        return rows

    def notes(self, rows: Sequence[Row], *, sequence_length: int) -> list[str]:
        cut = sum(row.get("target_cut", False) for row in rows)
        most = f"task.options.max_target_tokens: {self.max_target_tokens}"
        said = f"{cut:,} of {len(rows):,} targets are longer than {most} and were cut"
        return super().notes(rows, sequence_length=sequence_length) + ([said] if cut else [])

    def labels(self, token_ids: list[int]) -> list[int]:
        """The tokens of a target without a start token, with one end token, at most `max_target_tokens`."""
        end = self.tokenizer.eos_token_id
        start = 1 if token_ids[:1] == [self.start] else 0
        inner = token_ids[start:-1] if token_ids[-1:] == [end] else token_ids[start:]
        return [*inner[: self.max_target_tokens - 1], end]

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        answers = [
            {"prediction": text, "probability": probability}
            for text, probability in self.writing.write(model, self.tokenizer, room=self.max_target_tokens, **inputs)
        ]
        if "labels" not in batch:
            return answers
        found = likelihoods(output.logits, batch["labels"])
        return [answer | {"likelihood": one} for answer, one in zip(answers, found, strict=True)]

    def gold(self, example: Example) -> str:
        return str(example["target"])
