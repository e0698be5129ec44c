"""The names that the jobs of `attnkit scale` can be told: nothing heavy is imported to list them."""

from typing import Literal

Convention = Literal["6nd", "exact", "causal_useful", "hardware"]
Recompute = Literal["none", "selective", "full"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]
Precision = Literal["fp32", "bf16", "mixed", "mixed_fp32_gradients", "autocast"]
Optimizer = Literal["adamw", "muon", "adafactor", "adamw_8bit", "lion", "sgd", "sgd_momentum", "none"]
Logits = Literal["chunked", "whole"]
Rule = Literal["mup", "depth-mup", "completep"]

TRACED_BACKENDS = ("eager", "sdpa", "pairwise")
"""The backends whose memory is estimated."""
DEFAULT_LAW = "epoch"
BUDGETS = "'8xH100 24h', 'cpu 30min' or '200 A100-hours'"
"""Examples of budgets in words."""
