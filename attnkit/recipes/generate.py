"""Generation: a saved model goes on from a prompt, or writes what it makes of it."""

from dataclasses import dataclass, field

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from attnkit.data.rows import end_of_document
from attnkit.errors import UsageError, seed_problems
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.recipes.model import has_two_stacks, load_model
from attnkit.recipes.saved import tokenizer_of

USUAL = 100  # tokens that are generated


@dataclass(kw_only=True)
class GenerateRun:
    """What to generate, and how: sampling from the likeliest tokens, or the likeliest token each time."""

    path: str
    """A run, or a model: its folder or its name on the hub."""
    prompt: str = ""
    """The text to go on from, without which the model begins a document; a model of two stacks reads it and writes its
    own."""
    max_new_tokens: int | None = None
    """Tokens that are generated at most; null for 100, or as many as learned positions leave where these are fewer."""
    temperature: float = 0.8
    """Logits are divided by this before sampling; 0 takes the likeliest token each time."""
    top_p: float = 0.95
    """Sampling is from the likeliest tokens that together have this probability (Holtzman 2020)."""
    seed: int = 0
    """Seed of the sampling."""
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register parts; those of the run that made the model need not be named."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        rules = {
            f"max_new_tokens: {self.max_new_tokens} must be 1 or more": (
                self.max_new_tokens is None or self.max_new_tokens >= 1
            ),
            f"temperature: {self.temperature} must be 0 or more": self.temperature >= 0,
            f"top_p: {self.top_p} must be more than 0 and at most 1": 0 < self.top_p <= 1,
        }
        return [problem for problem, holds in rules.items() if not holds] + seed_problems("seed", self.seed)


def generate(run: GenerateRun) -> str:
    """The prompt and how a decoder goes on, or what a model of two stacks writes after reading it.

    Raises `UsageError` if there is no such model, it generates no text, or it has not that many positions.
    """
    reads = has_two_stacks(run.path)
    model = load_model(run.path, auto_class=AutoModelForSeq2SeqLM if reads else AutoModelForCausalLM).eval()
    tokenizer = tokenizer_of(run.path)
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return ("" if reads else run.prompt) + continue_text(
        model,
        tokenizer,
        run.prompt,
        max_new_tokens=run.max_new_tokens,
        seed=run.seed,
        temperature=run.temperature,
        top_p=run.top_p,
    )


@torch.no_grad()
def continue_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    max_new_tokens: int | None,
    seed: int,
    temperature: float = 0.8,
    top_p: float = 0.95,
) -> str:
    """What a model says after a prompt, which it takes for the beginning of a document, or for all of one if it has two
    stacks."""
    assert isinstance(model, GenerationMixin)
    reads = model.config.is_encoder_decoder
    words = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    input_ids = torch.tensor([[*words, end_of_document(tokenizer)] if reads else [begin, *words]], device=model.device)
    length = input_ids.shape[1]
    if max_new_tokens is None:
        max_new_tokens = max(1, min(USUAL, learned_positions(model, beyond=USUAL + length) - (1 if reads else length)))
    check_positions(model, max(length, 1 + max_new_tokens) if reads else length + max_new_tokens)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p} if temperature else {"do_sample": False}
    set_seed(seed)
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        **sampling,
    )
    return str(tokenizer.decode(output[0, 1 if reads else length :], skip_special_tokens=True))


def check_positions(model: PreTrainedModel, num_tokens: int) -> None:
    """Raise `UsageError` if a model whose positions are learned has not that many."""
    positions = learned_positions(model, beyond=num_tokens)
    if num_tokens > positions:
        raise UsageError(
            f"max_new_tokens: prompt and continuation are up to {num_tokens} tokens, and the model has {positions} "
            "learned positions: shorten one of them"
        )


def learned_positions(model: PreTrainedModel, *, beyond: int) -> int:
    """The learned positions of a model; `beyond` where it goes beyond those that it was trained with."""
    config = model.config
    is_learned = isinstance(config, AttnKitConfig) and config.position == "learned"
    return int(config.max_position_embeddings) if is_learned else beyond
