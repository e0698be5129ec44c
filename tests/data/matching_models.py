"""For every objective: rows of made-up text, and the smallest model that can be trained for it."""

from typing import Any

import datasets
import pyarrow as pa
from invented_text import sentences
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from attnkit import AttnKitConfig
from attnkit.data import Objective, ObjectiveConfig, TokenizerConfig, train_tokenizer
from attnkit.data.documents import Document
from attnkit.data.objectives import objectives
from attnkit.data.rows import RowMaker
from attnkit.data.sources import PretrainDataConfig

MODEL_FIELDS: dict[str, dict[str, Any]] = {
    "permuted": {"two_stream": True, "position": "transformer_xl"},
    "next_sentence": {"pooler": True, "type_vocab_size": 2},
}


def make_tokenizer(algorithm: str = "bpe", *, name: str = "denoising", **data: Any) -> PreTrainedTokenizerFast:
    """A tokenizer with the special tokens of an objective."""
    extra = objectives[name].extra_tokens(ObjectiveConfig(name=name), data=PretrainDataConfig(**data))
    config = TokenizerConfig(algorithm=algorithm, vocab_size=110 if algorithm == "wordpiece" else 310)
    return train_tokenizer(sentences(200), config, extra_tokens=extra)


def make_objective(name: str, tokenizer: Any, *, data: PretrainDataConfig | None = None, **options: Any) -> Objective:
    data = data or PretrainDataConfig(sequence_length=30)
    return objectives[name](tokenizer, ObjectiveConfig(name=name, **options), data=data)


def rows_for(objective: Objective, tokenizer: Any, number: int = 60, *, seed: int = 0) -> datasets.Dataset:
    """Rows of that many documents."""
    num_texts = 1 if objective.target_column(ObjectiveConfig()) is None else 2
    texts = sentences(num_texts * number, seed=seed)
    documents = [
        Document(tuple(texts[num_texts * index : num_texts * (index + 1)]), 0, held_out=False)
        for index in range(number)
    ]
    maker = RowMaker(tokenizer, packing=objective.packing)
    return datasets.Dataset(pa.concat_tables([table for _, table in maker.rows(documents)]))


def model_for(name: str, tokenizer: Any, **fields: Any) -> PreTrainedModel:
    """A tiny model, with random weights, that can be trained for an objective."""
    objective = objectives[name]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = AttnKitConfig(
        **{
            "architecture": objective.architectures[0],
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            **shape,
            **MODEL_FIELDS.get(name, {}),
            **fields,
        }
    )
    return objective.auto_class.from_config(config).eval()
