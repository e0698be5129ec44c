"""The plans by which transformers splits a model name what exists, and two processes compute what one computes."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import distributed
from transformers.distributed import DistributedConfig

from attnkit import AttnKitConfig, AttnKitForCausalLM, AttnKitForMaskedLM, AttnKitForSeq2SeqLM, AttnKitModel
from attnkit.attention import scorers
from attnkit.errors import UsageError
from attnkit.models.parallel import PER_HEAD, tensor_obstacle

SIZES: dict[str, Any] = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6}
SIZES |= {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "max_position_embeddings": 20}
LANGUAGE = {"encoder": AttnKitForMaskedLM, "decoder": AttnKitForCausalLM, "encoder-decoder": AttnKitForSeq2SeqLM}


def names_of(model: torch.nn.Module) -> set[str]:
    """Modules and parameters, with layers by a star."""
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
    return {".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names}


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("sharing", ["separate", "key_value", "query_key", "all"])
@pytest.mark.parametrize("architecture", LANGUAGE)
def test_plans_name_what_exists(architecture: str, sharing: Any, gated: bool) -> None:
    heads = 6 if sharing in ("query_key", "all") else 2
    fields = SIZES | {"architecture": architecture, "sharing": sharing, "gated_activation": gated}
    model = LANGUAGE[architecture](AttnKitConfig(**(fields | {"num_key_value_heads": heads, "scorer": "gaussian"})))
    for plan in (model.tp_plan, model.pp_plan, model.fsdp_plan):
        assert set(plan) <= names_of(model)
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    whole = {
        name for name in linear if ".".join("*" if p.isdigit() else p for p in name.split(".")) not in model.tp_plan
    }
    assert all(name.startswith("transform") for name in whole)
    assert model.supports_tp_plan
    assert AttnKitModel(model.config).tp_plan.keys() == {k.removeprefix("model.") for k in model.tp_plan} - {"lm_head"}


@pytest.mark.parametrize("name", sorted(scorers))
def test_parameters_of_scorers_have_heads_first_or_are_refused(name: str) -> None:
    config = AttnKitConfig(**SIZES, scorer=name, position="none")
    model = AttnKitForCausalLM(config)
    inner = dict(model.model.decoder.layers[0].attention.scorer.named_parameters())
    if tensor_obstacle(config) is None:
        assert all(parameter.shape[0] in (2, 6) for parameter in inner.values())
        planned = {
            key.rpartition(".")[2] for key, style in model.tp_plan.items() if style == PER_HEAD and "scorer" in key
        }
        assert planned == set(inner)
    else:
        assert config.base_model_tp_plan is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scorer": "additive"}, "scorer 'additive' reads its parameters once more"),
        ({"position": "t5"}, "position 't5' has a term per head"),
        ({"position": "alibi"}, "position 'alibi' has a term per head"),
        ({"normalizer": "sink"}, "normalizer 'sink' has a number per head"),
        ({"pattern": "local_p"}, "pattern 'local_p' has parameters per head"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 is no multiple of 2 processes"),
    ],
)
def test_what_cannot_be_divided_is_refused(fields: dict[str, Any], said: str) -> None:
    model = AttnKitForCausalLM(AttnKitConfig(**(SIZES | {"position": "none"} | fields)))
    with pytest.raises(UsageError, match=f"tp_size 2: {said}"):
        model._resolve_parallel_plans(DistributedConfig(tp_size=2))
    with pytest.raises(UsageError, match="pp_size: transformers splits a body that has `layers` itself"):
        model._resolve_parallel_plans(DistributedConfig(pp_size=2))


def compare(rank: int, folder: str, port: int, architecture: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    head = LANGUAGE[architecture]
    parts = head.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
    whole = head.from_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 31, (2, 9), generator=generator)
    inputs = {"input_ids": ids} | (
        {"decoder_input_ids": ids[:, :5].contiguous()} if whole.config.is_encoder_decoder else {}
    )
    with torch.no_grad():
        torch.testing.assert_close(parts.eval()(**inputs).logits, whole.eval()(**inputs).logits, rtol=0, atol=1e-5)
    labels = {"labels": inputs.get("decoder_input_ids", ids)}
    for model in (parts, whole):
        model(**inputs, **labels).loss.backward()
    for (name, part), parameter in zip(parts.named_parameters(), whole.parameters(), strict=True):
        gradient = part.grad.full_tensor() if hasattr(part.grad, "full_tensor") else part.grad
        torch.testing.assert_close(
            gradient, parameter.grad, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    if architecture == "decoder":
        texts = [model.generate(ids, max_new_tokens=5, do_sample=False) for model in (parts, whole)]
        assert torch.equal(*texts)
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "scorer"), [("decoder", "gaussian"), ("encoder-decoder", "multiplicative")])
def test_two_processes_compute_what_one_computes(architecture: str, scorer: str, tmp_path: Path) -> None:
    LANGUAGE[architecture](AttnKitConfig(**SIZES, architecture=architecture, scorer=scorer)).save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(compare, (str(tmp_path), port, architecture), nprocs=2)
