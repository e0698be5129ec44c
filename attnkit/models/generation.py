"""Generation as transformers does it, which says what a quantised cache cannot hold."""

from typing import Any

from transformers import GenerationMixin
from transformers.cache_utils import QuantizedLayer

from attnkit.attention import Attention
from attnkit.errors import UsageError, first_line


class AttnKitGenerationMixin(GenerationMixin):
    """`generate` of a model whose keys in the cache may be wider than its heads."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers does it. Raises `UsageError` for a cache that quantises groups of numbers into which mapped
        keys or values do not divide."""
        try:
            return super().generate(*args, **kwargs)
        except (ValueError, AssertionError) as error:  # which of the two is up to the library that quantises
            if not isinstance(error, UsageError) and raised_by(error, QuantizedLayer):
                keys, values = widths(self)
                raise UsageError(
                    f"the quantised cache cannot divide keys of {keys} and values of {values} numbers per token into "
                    f"its groups ({first_line(error)}): give cache_config={{'backend': 'fp8'}}, which has none, or no "
                    "cache_implementation"
                ) from error
            raise


def raised_by(error: BaseException, owner: type) -> bool:
    """Whether an error came through a method of an object of this class."""
    trace = error.__traceback__
    while trace is not None:
        if isinstance(trace.tb_frame.f_locals.get("self"), owner):
            return True
        trace = trace.tb_next
    return False


def widths(model: Any) -> tuple[int, int]:
    """Numbers of the mapped keys and of the values that a token has in the cache, in the first layer."""
    layer = next(module for module in model.modules() if isinstance(module, Attention))
    states = layer.q_proj.weight.new_zeros(1, 1, layer.q_proj.in_features)
    key, value = layer.self_keys(states, states.new_zeros(1, 1).long(), None, None, None)
    return key.shape[1] * key.shape[-1], value.shape[1] * value.shape[-1]
