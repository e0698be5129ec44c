"""Answers to instructions, by a causal model that reads a conversation through a chat template."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.data.readers import Row as FileRow
from attnkit.errors import Fault, RowError, UsageError, first_line
from attnkit.models.checks import num_positions
from attnkit.models.loss import IGNORED
from attnkit.tasks.base import Answer, Task, TaskConfig, pipeline_code, tasks
from attnkit.tasks.examples import Example, ExamplesConfig
from attnkit.tasks.fields import Field, any_text, misread, parsed, text
from attnkit.tasks.generation import Writing, likelihoods
from attnkit.tasks.rows import Row
from attnkit.tasks.token_classification import require_offsets

TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n' }}assistant:{% endif %}"
)
"""The chat template of a tokenizer that has none; it is saved with the tokenizer."""

CONVERSATION = '[{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'

Message = dict[str, str]


@tasks.register("instruction")
@final
class Instruction(Task):
    """p(answer | conversation) = Π p(token | tokens before it) over the answers alone, judged by perplexity.

    A conversation is a list of `{role, content}` in `messages_column`; or it is the instruction in `data.text_column`,
    with the text in `task.text_pair_column` below it where there is one, and the answer in `task.label_column`. It
    becomes text by the chat template of the tokenizer. Only tokens of the assistant's messages are predicted; where
    `data.sequence_length` leaves none of them, the example is dropped and counted. Metrics of texts judge what the
    model writes as the last answer: at most `max_new_tokens`, which null makes 64 or half of a row, the less of both.
    Where `num_beams` and `length_penalty` are null, the generation config of the model says them.
    """

    auto_class = AutoModelForCausalLM
    judged = {"likelihood": "likelihood", "text": "prediction"}
    usual_metrics = ("perplexity", "token_accuracy")
    guess = "the commonest answer, tokens by frequency"
    is_generated = True

    def __init__(
        self,
        task: TaskConfig,
        data: ExamplesConfig,
        *,
        messages_column: str | None = None,
        max_new_tokens: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
    ) -> None:
        super().__init__(task, data)
        other = {"task.label_column": task.label_column != TaskConfig.label_column}
        other["task.text_pair_column"] = task.text_pair_column is not None
        for setting in [name for name, is_set in other.items() if is_set and messages_column is not None]:
            raise UsageError(
                f"{setting} is not read where task.options.messages_column names the conversation: give one of both"
            )
        self.messages_column = messages_column
        self.writing = Writing(
            max_new_tokens=max_new_tokens, limit="max_new_tokens", num_beams=num_beams, length_penalty=length_penalty
        )

    def fields(self) -> dict[str, Field]:
        if self.messages_column is not None:
            return {
                "messages": Field(
                    column=self.messages_column, setting="task.options.messages_column", read=read_messages
                )
            }
        fields = {"text": Field(column=self.data.text_column, setting="data.text_column", read=text)}
        if self.task.text_pair_column is not None:
            fields["text_pair"] = Field(
                column=self.task.text_pair_column, setting="task.text_pair_column", read=any_text
            )
        fields["target"] = Field(column=self.task.label_column, setting="task.label_column", read=text, is_answer=True)
        return fields

    def messages(self, example: Example) -> list[Message]:
        """The conversation; without its last answer where the example has none."""
        if "messages" in example:
            return list(example["messages"])
        asked = "\n\n".join(part for part in (example["text"], example.get("text_pair", "")) if part.strip())
        answer = [{"role": "assistant", "content": example["target"]}] if "target" in example else []
        return [{"role": "user", "content": asked}, *answer]

    def unanswered(self, example: Example) -> Example:
        messages = self.messages(example)
        while messages[-1]["role"] == "assistant":  # the first is not
            messages.pop()
        return {**example, "messages": messages} if "messages" in example else example

    def check(self, example: Example) -> Iterator[Fault]:
        last = self.messages(example)[-1]
        if last["role"] != "assistant" or not last["content"].strip():
            column = self.messages_column or self.task.label_column
            yield Fault(
                f"column {column!r}: the last message is no text of the assistant's, so there is nothing to learn; end "
                "with an answer"
            )

    def texts(self, examples: Sequence[Example]) -> list[str]:
        return [message["content"] for example in examples for message in self.messages(example)]

    def describe(self) -> str:
        return "an answer"

    def prepare_model(self, model: PreTrainedModel, train: Sequence[Example]) -> None:
        self.positions = num_positions(model.config)

    def code(self) -> str:
        max_new_tokens = self.writing.num_tokens(self.positions and self.positions // 2)
        asks = f'[{{"role": "user", "content": "an instruction"}}], max_new_tokens={max_new_tokens}'
        return pipeline_code("text-generation", asks=asks)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        require_offsets(tokenizer)
        if tokenizer.eos_token_id is None:
            raise UsageError("tokenizer.path: it has no eos_token to end an answer with: add one")
        if tokenizer.chat_template is None:
            tokenizer.chat_template = TEMPLATE
        self.tokenizer = tokenizer

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        return [self.row(self.messages(example), max_length=max_length) for example in examples]

    def row(self, messages: list[Message], *, max_length: int) -> Row:
        """One conversation, cut on its right; what the last answer follows is `prompt`, cut on its left,
        and `room` how many tokens may follow it."""
        is_answered = messages[-1]["role"] == "assistant"
        prompt = self.text_of(messages[:-1] if is_answered else messages, asks=True)
        prompt_ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        max_new_tokens = self.writing.num_tokens(max_length // 2)
        room = max_length - max_new_tokens
        if room < 1:
            raise UsageError(
                f"task.options.max_new_tokens: {max_new_tokens} leaves no room for a prompt in rows of "
                f"data.sequence_length {max_length}: lower the one, or raise the other"
            )
        asked = {"prompt": prompt_ids[-room:], "room": max_new_tokens, "prompt_cut": len(prompt_ids) > room}
        if not is_answered:
            row = {"input_ids": prompt_ids[-room:], "attention_mask": [1] * len(prompt_ids[-room:])}
            return {**row, **asked, "cut": False}
        whole, spans = self.text_of(messages), self.answer_spans(messages)
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        labels = [
            token if number and any(start <= begin < end for start, end in spans) else IGNORED
            for number, (token, (begin, _)) in enumerate(
                zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
            )
        ]
        row = {name: encoded[name][:max_length] for name in ("input_ids", "attention_mask")}
        return {
            **row,
            "labels": labels[:max_length],
            **asked,
            "cut": len(labels) > max_length,
        }

    def notes(self, rows: Sequence[Row], *, sequence_length: int) -> list[str]:
        writes = any(key == "prediction" for _, key in self.metrics().values())
        cut = [row["room"] for row in rows if row["prompt_cut"] and (writes or "labels" not in row)]
        said = [
            f"{len(cut):,} of {len(rows):,} prompts are longer than data.sequence_length: {sequence_length} without "
            f"the {room} of task.options.max_new_tokens, and lose their beginning where an answer is written"
            for room in cut[:1]
        ]
        end = self.tokenizer.eos_token_id
        open_ended = [row for row in rows if "labels" in row and not row["cut"] and end not in row["labels"]]
        if open_ended:
            said.append(
                f"{len(open_ended):,} of {len(rows):,} answers do not end with {self.tokenizer.eos_token!r}, so that "
                "the model does not learn to stop and writes on: let the tokenizer's chat_template put {{ eos_token }} "
                "behind an answer"
            )
        return super().notes(rows, sequence_length=sequence_length) + said

    def text_of(self, messages: list[Message], *, asks: bool = False) -> str:
        """A conversation as the template writes it; with `asks`, up to where the next answer begins."""
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UsageError(
                f"tokenizer.path: its chat_template takes no conversation of {roles} ({first_line(error)}): order the "
                "messages as it wants them, or give it another chat_template"
            ) from error

    def answer_spans(self, messages: list[Message]) -> list[tuple[int, int]]:
        """The first character of each answer and the one after it. Raises `UsageError` where templates do not nest."""
        whole, spans = self.text_of(messages), []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self.text_of(messages[:number], asks=True), self.text_of(messages[: number + 1])
                if not whole.startswith(after) or not after.startswith(before):
                    raise UsageError(
                        "tokenizer.path: its chat_template writes the beginning of a conversation otherwise than the "
                        "whole of it, so answers cannot be told from prompts: give it another chat_template"
                    )
                spans.append((len(before), len(after)))
        return spans

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        answers: list[Answer] = [{} for _ in rows]
        if "labels" in batch:
            found = likelihoods(output.logits[:, :-1], batch["labels"][:, 1:])
            answers = [{"likelihood": one} for one in found]
        if "labels" not in batch or any(key == "prediction" for _, key in self.metrics().values()):
            for answer, (written, probability) in zip(answers, self.write(rows, model=model), strict=True):
                answer |= {"prediction": written, "probability": probability}
        return answers

    def write(self, rows: list[Row], *, model: PreTrainedModel) -> list[tuple[str, float]]:
        """What the model answers; prompts are padded on their left, for the answers to follow them."""
        width = max(len(row["prompt"]) for row in rows)
        pad = self.tokenizer.pad_token_id
        tokens = [[pad] * (width - len(row["prompt"])) + row["prompt"] for row in rows]
        mask = [[0] * (width - len(row["prompt"])) + [1] * len(row["prompt"]) for row in rows]
        inputs = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}
        on_device = {name: values.to(model.device) for name, values in inputs.items()}
        return self.writing.write(model, self.tokenizer, room=rows[0]["room"], **on_device)

    def gold(self, example: Example) -> str:
        return self.messages(example)[-1]["content"]


def read_messages(row: FileRow, column: str) -> list[Message]:
    """A conversation: messages with a role and a content."""
    value = parsed(row, column, form=CONVERSATION)
    if not isinstance(value, list) or not value:
        raise misread(row[0], column, value, f"no list of messages; write it as {CONVERSATION}")
    for message in value:
        match message:
            case {"role": "system" | "user" | "assistant" | "tool", "content": str()}:
                continue
        raise misread(row[0], column, message, "no message; one is {role: system, user or assistant, content: text}")
    if value[0]["role"] == "assistant":
        said = "begins with the assistant's message, which answers nothing; put a message of the user before it"
        raise RowError(row[0], Fault(f"column {column!r} {said}"))
    return [{"role": message["role"], "content": message["content"]} for message in value]
