"""Generation as transformers does it, which says what a quantised cache cannot hold."""

from typing import Any, cast

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import QuantizedLayer

from attnkit.errors import UsageError, first_line
from attnkit.models.configuration_attnkit import AttnKitConfig


class AttnKitGenerationMixin(GenerationMixin):
    """`generate` that counts positions as the configuration says, and whose error for a cache that cannot be is one
    line."""

    config: AttnKitConfig

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers does it. Raises `UsageError` for a cache that quantises groups of numbers into which keys
        and values do not divide."""
        try:
            return super().generate(*args, **kwargs)
        except (ValueError, AssertionError) as error:  # which of the two is up to the library that quantises
            if not isinstance(error, UsageError) and raised_by(error, QuantizedLayer):
                sizes = self.config.get_text_config(decoder=True)
                width = sizes.num_key_value_heads * sizes.head_dim
                raise UsageError(
                    f"the quantised cache cannot divide the {width} numbers of a token's keys into its groups "
                    f"({first_line(error)}): give cache_config={{'backend': 'fp8'}}, which has none, or no "
                    "cache_implementation"
                ) from error
            raise

    def _prefill(self, input_ids: Tensor, generation_config: GenerationConfig, *args: Any, **kwargs: Any) -> Any:
        """As transformers does it. Raises `UsageError` where it would cut the source's mask with the prompt."""
        if self.config.is_encoder_decoder and generation_config.prefill_chunk_size is not None:
            raise UsageError(
                "prefill_chunk_size: in an encoder-decoder transformers cuts the mask of the source to the length of a "
                "part of the decoder's prompt; leave it out"
            )
        return cast(Any, super())._prefill(input_ids, generation_config, *args, **kwargs)

    def _prepare_position_ids_for_generation(self, *args: Any) -> Tensor:
        positions: Tensor = super()._prepare_position_ids_for_generation(*args)
        return positions + self.config.generation_offset

    def _prepare_generated_length(self, *, generation_config: GenerationConfig, **kwargs: Any) -> GenerationConfig:
        """A text whose length nobody asked for ends where the positions do, counted from where `generate` begins."""
        usual, theirs = generation_config.max_length, cast(Any, super())  # whose type is that of a whole model
        config: GenerationConfig = theirs._prepare_generated_length(generation_config=generation_config, **kwargs)
        if config.max_new_tokens is None and kwargs["has_default_max_length"]:
            places = self.config.max_position_embeddings - self.config.generation_offset
            config.max_length = min(usual + kwargs["input_ids_length"], places)
        return config


def raised_by(error: BaseException, owner: type) -> bool:
    """Whether an error came through a method of an object of this class."""
    trace = error.__traceback__
    while trace is not None:
        if isinstance(trace.tb_frame.f_locals.get("self"), owner):
            return True
        trace = trace.tb_next
    return False
