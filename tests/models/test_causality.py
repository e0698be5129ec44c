"""A model of transformers that sees what it is to predict is no causal model, whatever its class is called."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BigBirdConfig,
    BloomConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLMConfig,
    XLNetConfig,
)

from attnkit.errors import UsageError
from attnkit.models.causality import check_causal

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
WIDE = SIZES | {"intermediate_size": 32}
XLNET = {"vocab_size": 60, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}
XLM = {"vocab_size": 60, "emb_dim": 16, "n_layers": 1, "n_heads": 2}
ENCODERS = [BertConfig, RobertaConfig, ElectraConfig, BigBirdConfig]
CAUSAL = {
    "gpt2": GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2),
    "short": GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2, n_positions=4),
    "llama": LlamaConfig(**WIDE),
    "bloom": BloomConfig(vocab_size=60, hidden_size=16, n_layer=1, n_head=2),
    "experts": MixtralConfig(**WIDE, num_key_value_heads=2, num_local_experts=4),
    "mamba": MambaConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, state_size=4),
    **{config.model_type: config(**WIDE, is_decoder=True) for config in ENCODERS},
}
SEES = {
    **{config.model_type: config(**WIDE) for config in ENCODERS},
    "xlnet": XLNetConfig(**XLNET, attn_type="bi"),
    "xlm": XLMConfig(**XLM),
}
ITSELF = {"xlnet": XLNetConfig(**XLNET, attn_type="uni"), "xlm": XLMConfig(**XLM, causal=True)}


def built(config: PreTrainedConfig, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_config(config).to(dtype).train()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_models_pass_and_stay_as_they_are(name: str, dtype: torch.dtype) -> None:
    model, before = built(CAUSAL[name], dtype), torch.get_rng_state()
    check_causal(model, named="it")
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SEES)
def test_models_that_see_what_they_predict_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=r"it: .* sees the tokens after the one .* give a causal model") as raised:
        check_causal(built(SEES[name], dtype), named="it")
    assert ('"is_decoder": true in its config.json' in str(raised.value)) == (name not in ("xlnet", "xlm"))


@pytest.mark.parametrize("name", ITSELF)
def test_models_that_predict_what_they_read_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"it: the loss of XL\w+ asks each token for itself, not for the next one"):
        check_causal(built(ITSELF[name], torch.float32), named="it")
