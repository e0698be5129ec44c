"""Train each model of some JSON lines for two steps in a process of its own and print the most memory it took.

The baseline is that of the process after it has trained that model once, which loads whatever torch needs.
"""

import gc
import json
import os
import sys
from pathlib import Path

import torch

from attnkit import AttnKitConfig
from attnkit.models.language import minimising
from attnkit.models.loss import IGNORED, TokenLoss
from attnkit.scaling.subject import Subject


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def train(case: dict) -> None:
    model = Subject(config=AttnKitConfig(**case["config"]), head=case["head"]).build(backend=case["backend"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for seq_len in (8, case["seq_len"]):  # the states of the optimizer are there before the step that is measured
        ids = torch.randint(2, model.config.vocab_size, (case["batch_size"], seq_len))
        inputs = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        labels = ids.clone()
        labels[:, case["predicted"] :] = IGNORED
        with minimising(TokenLoss() if case["logits"] == "chunked" else None, model):
            out = model(input_ids=ids, labels=labels, use_cache=False, **inputs)  # a caller holds its logits
            out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


for line in sys.argv[1:]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        case = json.loads(line)
        train(case)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        baseline = status("VmRSS")
        train(case)
        os.write(writer, str(status("VmHWM") - baseline).encode())
        os._exit(0)
    os.close(writer)
    print(os.read(reader, 100).decode(), flush=True)
    os.waitpid(child, 0)
