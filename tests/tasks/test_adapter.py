"""An adapter trains what it says, a new head always, and refuses what PEFT would take without a word."""

import re
from typing import Any

import pytest
import torch

import attnkit
from attnkit.errors import UsageError
from attnkit.tasks.adapter import AdapterConfig, adapt, merge


def classifier() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    config = attnkit.AttnKitConfig(**sizes, architecture="encoder", num_labels=3)
    return attnkit.AttnKitForSequenceClassification(config)


@pytest.mark.parametrize("method", ["lora", "loha", "hra"])
def test_a_new_head_is_trained_and_saved_whatever_else_is(method: str) -> None:
    model = classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = AdapterConfig(method=method, options={"modules_to_save": ["tokens"]})
    adapted = adapt(model, adapter, new_head=True)
    optimizer = torch.optim.SGD([it for it in adapted.parameters() if it.requires_grad], lr=1.0)
    adapted(input_ids=torch.arange(8).view(2, 4), labels=torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    merged = merge(adapted, adapter).state_dict()
    assert merged.keys() == before.keys()
    changed = {name for name, value in merged.items() if not torch.equal(value, before[name])}
    assert {name for name in before if "tokens" in name or name.startswith("score.")} <= changed


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("lora", {"lora_dropout": -1}, "adapter.options.lora_dropout must be at least 0 and finite, not -1"),
        ("lora", {"lora_dropout": 1}, "adapter.options.lora_dropout must be less than 1, not 1: nothing would pass"),
        ("lora", {"lora_alpha": float("nan")}, "adapter.options.lora_alpha must be at least 0 and finite, not nan"),
        ("lora", {"lora_alpha": float("inf")}, "adapter.options.lora_alpha must be at least 0 and finite, not inf"),
        ("lora", {"lora_alpha": "x"}, "adapter.options.lora_alpha must be a number, not 'x'"),
        ("lora", {"lora_alpha": 0}, "adapter.options: {'lora_alpha': 0} multiply the adapter by 0, so that it learns"),
        ("loha", {"alpha": 0}, "adapter.options: {'alpha': 0} multiply the adapter by 0, so that it learns nothing"),
        ("lora", {"r": 0}, "adapter.options: `r` should be a positive integer"),
        ("lora", {"use_dora": 1}, "adapter.options.use_dora must be true or false, not 1"),
        ("loha", {"rank_dropout": -0.5}, "adapter.options.rank_dropout must be at least 0 and finite, not -0.5"),
        ("lokr", {"module_dropout": 2}, "adapter.options.module_dropout must be less than 1, not 2"),
        ("ia3", {"modules_to_save": "head"}, "adapter.options.modules_to_save must be a list of names, not 'head'"),
        (
            "lora",
            {"modules_to_save": ["scorr"]},
            "modules_to_save: the model has no part 'scorr': did you mean 'scorer'",
        ),
        ("lora", {"target_modules": ["q_proj", "quer"]}, "target_modules: the model has no part 'quer': "),
        ("lora", {"exclude_modules": ["quer"]}, "adapter.options.exclude_modules: the model has no part 'quer': "),
        ("trainable_tokens", {"token_indices": [1]}, "adapter.method: 'trainable_tokens' trains no new head"),
    ],
)
def test_what_an_adapter_cannot_be_is_one_line(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        adapt(classifier(), AdapterConfig(method=method, options=options), new_head=True)
    assert len(str(error.value).splitlines()) == 1
