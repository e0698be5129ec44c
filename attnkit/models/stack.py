"""One side of a transformer: embeddings, blocks, final norm.

Shapes: B batch, N tokens, S source tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from attnkit.attention.backends import BACKENDS as ALL_ATTENTION_FUNCTIONS
from attnkit.attention.backends import eager_attention
from attnkit.attention.layer import SecondStream
from attnkit.attention.masks import build_mask, count_attended, count_keys, find_documents
from attnkit.errors import UsageError
from attnkit.models.blocks import Block, build_norm
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.embeddings import Embeddings
from attnkit.models.pretrained import AttnKitPreTrainedModel
from attnkit.models.two_streams import permute, rows_of, see_self, targets_of

renamed_cache = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


class Stack(AttnKitPreTrainedModel):
    """Token ids to hidden states.

    `causal`: a token sees none after it. `cross`: each block also reads the states of another stack. `first_layer` is
    the number of layers in the stacks before this one.
    """

    def __init__(
        self, config: AttnKitConfig, *, num_layers: int, causal: bool, cross: bool = False, first_layer: int = 0
    ) -> None:
        super().__init__(config)
        self.causal = causal
        self.cross = cross
        self.first_layer = first_layer
        sizes = config.get_text_config(decoder=cross)
        # Vectors given in place of ids: as Marian has it in transformers, the one model with this factor.
        num_types = 0 if cross else config.type_vocab_size
        self.embeddings = Embeddings(sizes, type_vocab_size=num_types, causal=causal, scales_given=cross)
        self.layers = nn.ModuleList(
            Block(sizes, layer_idx=layer_idx, depth=first_layer + layer_idx, causal=causal, cross=cross)
            for layer_idx in range(num_layers)
        )
        self.norm = build_norm(config) if config.final_norm else None
        if config.two_stream:
            self.target_start = nn.Parameter(torch.empty(config.hidden_size))  # what a target is before it is known
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.config.two_stream:
            init.normal_(self.target_start, std=self.config.initializer_range)
        if self.config.scale_residual_init and isinstance(module, nn.Linear):
            # Asked of each layer alone: transformers leaves out modules that have no parameters of their own.
            projections = [projection for layer in self.layers for projection in layer.residual_projections()]
            if module in projections:
                init.normal_(module.weight, std=self.config.initializer_range * len(projections) ** -0.5)

    def init_parallel_plans(self) -> None:
        """None of its own: the plans of the configuration name modules of the whole body."""
        self._tp_plan, self._ep_plan, self._pp_plan, self._fsdp_plan = {}, {}, {}, {}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.tokens = value

    @renamed_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """`input_ids` [B, N] or `inputs_embeds` [B, N, hidden_size] -> hidden states [B, N, hidden_size].

        Position ids that restart inside a row mark packed documents, which do not attend to each other. With the
        `target_mapping` [B, P, N] of two streams, whose rows are one-hot, the states are those of the targets
        [B, P, hidden_size]; `perm_mask` [B, N, N] is 1 where a token or target may not see a token, but tokens see
        themselves.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if self.cross != (encoder_hidden_states is not None):
            raise ValueError("only a decoder of an encoder-decoder takes encoder_hidden_states, and it needs them")
        states = self.embeddings.token_vectors(input_ids, inputs_embeds)
        cache = self.start_cache(use_cache) if cache is None else cache
        past = count_past(cache)
        documents = find_documents(position_ids, attention_mask) if may_pack(position_ids, past) else None
        if position_ids is None:
            position_ids = self.count_positions(states, attention_mask, input_ids, past)
        source_positions = self.count_source(encoder_attention_mask)
        self.check_length(past, position_ids, encoder_hidden_states, source_positions)
        # Only eager attention has the weights, so a call that asks for them is computed by it.
        wants_weights = bool(kwargs.get("output_attentions", self.config.output_attentions))
        backend_name = "eager" if wants_weights else self.config._attn_implementation
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        masks = self.build_masks(backend_name, states, attention_mask, own_cache, position_ids, documents)
        shape = (*states.shape[:2], past + states.shape[1])
        masks, target_masks, places = self.split_streams(masks, perm_mask, target_mapping, shape)
        second = None if places is None else self.start_targets(places, position_ids, token_type_ids)
        states = self.run_layers(
            self.embeddings(states, position_ids, token_type_ids),
            encoder_hidden_states,
            self.position_bias(states, own_cache, past),
            second,
            masks=masks,
            target_masks=target_masks,
            segments=token_type_ids,
            positions=position_ids.clamp(min=0),
            rotation=self.embeddings.position.rotation(position_ids),
            past=past,
            source_mask=self.source_mask(backend_name, states, encoder_hidden_states, encoder_attention_mask),
            source_positions=source_positions,
            key_positions=self.count_cached(own_cache, position_ids.clamp(min=0), attention_mask, past),
            cache=cache,
            backend=ALL_ATTENTION_FUNCTIONS.get_interface(backend_name, eager_attention),
        )
        if self.training and attention_mask is not None and attention_mask.ndim == 2:
            padding = attention_mask == 0
            for attention in (attention for layer in self.layers for attention in layer.attentions()):
                attention.normalizer.leave_out(padding)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=states if self.norm is None else self.norm(states), cache=cache
        )

    def run_layers(
        self,
        states: Tensor,
        source: Tensor | None,
        bias: Tensor | None,
        second: SecondStream | None,
        *,
        masks: list[Tensor | None],
        target_masks: list[Tensor | None],
        **shared: Any,
    ) -> Tensor:
        """All blocks, one after the other; the states of the second stream where there is one. `shared` is what
        `Block.forward` takes that is the same in all layers."""
        targets = None if second is None else second.states
        for layer, mask, target_mask in zip(self.layers, masks, target_masks, strict=True):
            beside = None if second is None else second._replace(mask=target_mask)
            states = layer(states, source, bias, targets, second=beside, mask=mask, **shared)
            if targets is not None:
                states, targets = states
        return states if targets is None else targets

    def split_streams(
        self,
        masks: list[Tensor | None],
        perm_mask: Tensor | None,
        target_mapping: Tensor | None,
        shape: tuple[int, int, int],
    ) -> tuple[list[Tensor | None], list[Tensor | None], Tensor | None]:
        """The masks of the tokens and of the targets, layer by layer, and the places [B, P] of the targets if there are
        any. `shape` is that of `permute`."""
        nothing: list[Tensor | None] = [None] * len(masks)
        if not self.config.two_stream:
            if perm_mask is not None or target_mapping is not None:
                raise UsageError("perm_mask and target_mapping need a model with two streams: set two_stream true")
            return masks, nothing, None
        device = self.target_start.device
        allowed = [permute(mask, perm_mask, shape=shape, device=device) for mask in masks]
        masks = [see_self(each) for each in allowed]
        if target_mapping is None:
            return masks, nothing, None
        places = targets_of(target_mapping)
        return masks, [rows_of(each, places) for each in allowed], places

    def source_mask(
        self, backend_name: str, states: Tensor, source: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        """The mask of cross attention: the padding [B, S] of the source."""
        if source is None:
            return None
        num_keys = source.shape[1]
        return build_mask(backend_name, states=states, attention_mask=padding, causal=False, num_keys=num_keys)

    def start_targets(self, places: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> SecondStream:
        """The second stream before the first layer, for targets at `places` [B, P]."""
        start = self.embeddings.dropout(self.target_start.expand(*places.shape, -1))
        segments = None if token_type_ids is None else token_type_ids.gather(1, places)
        return SecondStream(start, position_ids.expand(len(places), -1).gather(1, places), segments, mask=None)

    def build_masks(
        self,
        backend_name: str,
        states: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None,
        position_ids: Tensor,
        documents: Tensor | None,
    ) -> list[Tensor | None]:
        """The mask of each layer; layers of one pattern share theirs."""
        masks: dict[str, Tensor | None] = {}
        keys = [str(self.config.pattern_of_layer(self.first_layer + index)) for index in range(len(self.layers))]
        for key, layer in zip(keys, self.layers, strict=True):
            if key not in masks:
                masks[key] = build_mask(
                    backend_name,
                    states=states,
                    attention_mask=attention_mask,
                    causal=self.causal,
                    pattern=layer.attention.pattern,
                    attend_to_self=self.config.attend_to_self,
                    position_ids=position_ids,
                    documents=documents,
                    cache=cache,
                )
        return [masks[key] for key in keys]

    def position_bias(self, states: Tensor, cache: Cache | None, past: int | Tensor) -> Tensor | None:
        """The term of all scores that the layers share, [1, H, N, keys]."""
        num_tokens, device = states.shape[1], states.device
        num_keys, first_key = (num_tokens, 0) if cache is None else cache.get_mask_sizes(num_tokens, 0)
        query_places = past + torch.arange(num_tokens, device=device)
        key_places = first_key + torch.arange(num_keys, device=device)
        return self.embeddings.position.bias(query_places, key_places, states.dtype)

    def start_cache(self, use_cache: bool | None) -> Cache | None:
        """An empty cache where one is wanted and the stack can use it."""
        if not (self.causal and use_cache):
            return None
        own = DynamicCache(config=self.config)
        return EncoderDecoderCache(own, DynamicCache(config=self.config)) if self.cross else own

    def count_positions(
        self, states: Tensor, attention_mask: Tensor | None, input_ids: Tensor | None, past: int | Tensor
    ) -> Tensor:
        """Positions [B, N] as `config.position_counting` says; past tokens count from 0."""
        num_tokens, counting = states.shape[1], self.config.position_counting
        if counting == "unpadded" and input_ids is not None:
            real = input_ids.ne(self.config.pad_token_id)
            return torch.where(real, real.cumsum(-1) - 1 + past, -1)
        if counting != "attended" or attention_mask is None or attention_mask.ndim != 2:
            return (torch.arange(num_tokens, device=states.device) + past).expand(states.shape[0], -1)
        # The attention mask covers past tokens too, and those to come where there is a static cache.
        columns = past + torch.arange(num_tokens, device=states.device)
        return count_attended(attention_mask)[:, columns]

    def count_source(self, padding: Tensor | None) -> Tensor | None:
        """Positions [B, S] of the source's tokens, for scorers of cross attention that know where a key stands; None
        where they are the places in the row. The source's ids are not at hand: what they would say, its mask does."""
        if self.config.position_counting == "all" or padding is None or padding.ndim != 2:
            return None
        return count_attended(padding)

    def count_cached(
        self, cache: Cache | None, positions: Tensor, padding: Tensor | None, past: int | Tensor
    ) -> Tensor | None:
        """Positions [B, keys] of all tokens in the cache, the new ones at `positions` [B, N] among them."""
        if cache is None:
            return None
        counts_all = self.config.position_counting == "all" or padding is None or padding.ndim != 2
        num_keys, _ = cache.get_mask_sizes(positions.shape[1], 0)
        return count_keys(positions, past, num_keys, padding=None if counts_all else padding)

    def check_length(
        self, past: int | Tensor, positions: Tensor, source: Tensor | None, source_positions: Tensor | None
    ) -> None:
        """Refuse tokens at positions [B, N], or of a source [B, S, hidden_size], beyond those that the position, or a
        scorer that knows positions, has parameters for."""
        layers: Any = self.layers
        num_tokens = past + positions.shape[1] if isinstance(past, int) else 0  # how full a static cache is, it checks
        parts = [(f"position {self.config.position!r}", self.embeddings.position.max_trained)]
        parts += [(type(layer.attention.scorer).__name__, layer.attention.scorer.max_trained) for layer in layers]
        checks: list[Any] = [(*part, num_tokens, positions) for part in parts]
        if source is not None:
            scorers = [layer.cross_attention.scorer for layer in layers]
            parts = [(f"cross attention's {type(scorer).__name__}", scorer.max_trained) for scorer in scorers]
            checks += [(*part, num_tokens, positions) for part in parts]
            checks += [(*part, source.shape[1], source_positions) for part in parts]
        for name, limit, length, counted in checks:
            # Rows may be longer than texts in them. Positions are read only then, as a device has to be waited for.
            if limit is not None and length > limit and counted is not None:
                length = int(counted.max()) + 1
            if limit is not None and length > limit:
                raise UsageError(
                    f"{length} tokens, but {name} has {limit} positions: raise "
                    "max_position_embeddings, or shorten the input"
                )


def count_past(cache: Cache | None) -> int | Tensor:
    """How many tokens are in a cache."""
    past = 0 if cache is None else cache.get_seq_length()
    return past.clone() if isinstance(past, Tensor) else past  # a static cache counts on in place


def may_pack(position_ids: Tensor | None, past: int | Tensor) -> bool:
    """Whether rows may hold several documents: not those that go on with a text in the cache. A compiler cannot branch
    on how full a static cache is, so the rows of a compiled pass into one are single documents."""
    if position_ids is None or position_ids.shape[-1] == 1:
        return False
    return past == 0 if isinstance(past, int) else not torch.compiler.is_compiling() and bool(past == 0)
