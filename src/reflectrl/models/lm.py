"""One player's language model: a model of its own, or one adapter among several on a shared backbone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reflectrl.models.backend import Backend, Counters
from reflectrl.models.cards import CARD, fingerprint
from reflectrl.models.machine import Mixed, autocast, is_mixed
from reflectrl.models.packed import PackedBackend
from reflectrl.models.pieces import activate, piece, wholes
from reflectrl.models.plain import PlainBackend
from reflectrl.prompts.chat import Chat
from reflectrl.prompts.tokens import encode_text
from reflectrl.types import named_seed

if TYPE_CHECKING:
    from reflectrl.models.sharded import Shards

HEADS = "heads.safetensors"
"""The file beside saved weights that holds the weights of the heads."""


@dataclass(frozen=True)
class Shortcuts:
    """Which parts of the engine give a model's own numbers, as `proof.py` finds out when the model is loaded.

    Attributes:
        packed: the packed backend; otherwise the plain one.
        blocks: packed, block by block for the families that the engine knows; otherwise through the library's layers.
        compiled: packed and block by block, what layers do beside attention by torch.compile.
        batched: packed, many prompts attended together, as GPUs want it; otherwise one by one, as fast on CPUs.
        rows: packed, only those rows of the LM head that are asked for; otherwise the model's own code for all of them.
        cache: plain, the library's own cache while writing.
    """

    packed: bool = True
    blocks: bool = True
    compiled: bool = False
    batched: bool = False
    rows: bool = True
    cache: bool = True


@dataclass
class LanguageModel:
    """What one player computes with, and how.

    Attributes:
        model: a `PreTrainedModel`, or the `PeftModel` that carries several players' adapters.
        adapter: the adapter of this player; None when the player owns every weight.
        context: the longest sequence in tokens.
        base: name or folder of the backbone that adapters stand on (written beside a saved adapter).
        mixed: whether `training` computes matrix products in bfloat16.
        mixed_play: the same for `playing`.
        shortcuts: which backend, and which of its parts.
        counters: what this player has computed.
        chat: what a chat template puts around prompts; None where there is none, or none is used.
        heads: weights of whatever else reads the model's hidden states, such as a critic; saved with the model.
        shards: this rank's pieces of the model, where its weights are divided among ranks.
        backbone_tokenizer: the backbone's fingerprint, where an adapter has a tokenizer with other tokens.
        brings_embeddings: the adapter came with embeddings for its backbone, and is saved with them.
    """

    model: Any
    tokenizer: Any
    context: int
    adapter: str | None = None
    base: str = ""
    mixed: Mixed = "off"
    mixed_play: Mixed = "off"
    shortcuts: Shortcuts = Shortcuts()
    counters: Counters = field(default_factory=Counters)
    heads: dict[str, Tensor] = field(default_factory=dict)
    chat: Chat | None = None
    shards: Shards | None = None
    backbone_tokenizer: str = ""
    brings_embeddings: bool = False

    @cached_property
    def core(self) -> nn.Module:
        """The Hugging Face model without the PEFT wrapper."""
        return self.model.get_base_model() if self.adapter else self.model

    @cached_property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.core.get_input_embeddings().weight.dtype  # type: ignore[operator]

    @property
    def _shape(self) -> Any:
        """What the configuration says of the part that reads text."""
        config: Any = self.core.config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def layers(self) -> int:
        """How many the model has."""
        return int(self._shape.num_hidden_layers)

    @property
    def pass_tokens(self) -> int:
        """About how many tokens to read at a time; on CPUs, activations of a thousand stay in the caches."""
        return 1024 if self.device.type == "cpu" else 32_768

    @property
    def token_bytes(self) -> int:
        """Memory of one token's keys and values in all layers, as play keeps them."""
        if not self.shortcuts.packed:
            return 0  # nothing is kept
        config = self._shape
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kept = torch.bfloat16 if is_mixed(self.device, self.mixed_play) else self.dtype
        return int(2 * self.layers * heads * width * kept.itemsize)

    @property
    def activation_bytes(self) -> int:
        """About how many bytes a pass keeps of a token for its gradient: 20 vectors per layer (measured: 14 to 16)."""
        return 20 * self.hidden_size * self.layers * self.dtype.itemsize

    @property
    def logits_bytes(self) -> int:
        """About how many bytes a scored token's logits take until its gradient is known, with softmax and gradient."""
        return 3 * self.core.get_output_embeddings().weight.shape[0] * torch.float32.itemsize  # type: ignore[operator]

    @property
    def hidden_size(self) -> int:
        return int(self.core.get_input_embeddings().weight.shape[1])  # type: ignore[operator]

    def parameters(self) -> list[nn.Parameter]:
        """What a learner may change: every weight, or this player's adapter."""
        if self.adapter is None:
            return list(self.model.parameters())
        return [p for name, p in self.model.named_parameters() if self._is_own(name)]

    def _is_own(self, name: str) -> bool:
        """Whether a weight belongs to this player; of an adapter, PEFT puts its name into or behind the weight's."""
        return self.adapter is None or self.adapter in name.split(".")

    def activate(self) -> None:
        """Make this player's adapter the one that computes."""
        if self.adapter is not None:
            activate(self.model, self.adapter)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode within the block (dropout on, mixed precision); elsewhere the model is in evaluation mode."""
        self.model.train()
        try:
            with autocast(self.device, self.mixed):
                yield
        finally:
            self.model.eval()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """No gradients within the block, and mixed precision where it is asked for."""
        with torch.inference_mode(), autocast(self.device, self.mixed_play):
            yield

    @cached_property
    def backend(self) -> Backend:
        """What reads, scores and writes with this model."""
        if self.shards is not None:
            from reflectrl.models.sharded import ShardedBackend  # torch's FSDP takes seconds to import

            return ShardedBackend(self, self.shards)
        return PackedBackend(self) if self.shortcuts.packed else PlainBackend(self)

    @property
    def end(self) -> int:
        """The token that ends what is written: the template's end of a turn, or end-of-text."""
        return int(self.tokenizer.eos_token_id if self.chat is None else self.chat.end)

    @property
    def ends(self) -> frozenset[int]:
        """All tokens with which the model may end a text."""
        found = (self.tokenizer.eos_token_id, None if self.chat is None else self.chat.end)
        return frozenset(int(token) for token in found if token is not None)

    def encode(self, text: str, behind: str = "") -> list[int]:
        """The ids of a text in which nothing is a control token, and that follows another one; see `encode_text`."""
        return encode_text(self.tokenizer, text, behind)

    def saver(self, **card: Any) -> Callable[[Path], None]:
        """What writes the model as it is now (`save`). All ranks that share one call this; the first one writes."""
        if self.shards is None or self.adapter is not None:
            return partial(self.save, **card)
        return partial(self.save, weights=wholes(self.weights()), **card)

    def save(self, folder: Path, weights: dict[str, Tensor] | None = None, **card: Any) -> None:
        """Write weights (safetensors), tokenizer and a card that names the tokenizer they belong to.

        Args:
            weights: all of them, where this process has pieces only.
        """
        if self.adapter is None:
            self.model.save_pretrained(folder, state_dict=weights)
        else:
            # "auto" would ask the hub whether the backbone's vocabulary has changed.
            self.model.save_pretrained(
                folder, selected_adapters=[self.adapter], save_embedding_layers=self.brings_embeddings
            )
            nested = folder / self.adapter  # PEFT's place for a named adapter; other tools expect it at the top
            for file in nested.glob("*"):
                file.replace(folder / file.name)
            if nested.is_dir():
                nested.rmdir()
        self.tokenizer.save_pretrained(folder)
        if self.heads:
            save_file(self.heads, folder / HEADS)
        about = {"tokenizer": fingerprint(self.tokenizer), "base": self.base, "context": self.context, **card}
        about |= {"chat": asdict(self.chat)} if self.chat else {}
        about |= {"backbone_tokenizer": self.backbone_tokenizer} if self.backbone_tokenizer else {}
        (folder / CARD).write_text(json.dumps(about, indent=1), encoding="utf-8")

    def frozen_copy(self, name: str = "reference") -> LanguageModel:
        """The same weights, never to be trained: a further adapter on the backbone, or a copy of the model."""
        if self.adapter is None and self.shards is not None:
            model, shards = self.shards.frozen_copy(self.model)
            twin = replace(self, model=model, shards=shards, counters=Counters())
            twin.load_weights(self.weights())
            return twin
        if self.adapter is None:
            return replace(self, model=copy.deepcopy(self.model).requires_grad_(False).eval(), counters=Counters())
        frozen = fresh_adapter(self, name)
        frozen.load_weights(self.weights())
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        return frozen

    def weights(self, frozen: bool = True) -> dict[str, Tensor]:
        """A copy of this player's own weights, under names that do not contain the adapter's.

        Of weights that two parts share, such as tied embeddings, there is one copy, under the first one's name.

        Args:
            frozen: whether layers that nothing changes (`freezing`) are copied too.
        """
        own = self.model.state_dict(keep_vars=True)
        fixed = set() if frozen or self.adapter else {id(p) for p in self.model.parameters() if not p.requires_grad}
        names = dict[int, str]()
        for name, tensor in own.items():
            if self._is_own(name) and id(tensor) not in fixed:
                names.setdefault(id(tensor), name)
        return {renamed(name, self.adapter, "adapter"): own[name].detach().clone() for name in names.values()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Set what `weights` returned."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                kept = own[renamed(name, "adapter", self.adapter)]
                kept.copy_(piece(value, kept))


def renamed(name: str, old: str | None, new: str | None) -> str:
    """A weight's name with the adapter's name in it replaced; as it is where a player owns all weights."""
    if old is None or new is None:
        return name
    return ".".join(new if part == old else part for part in name.split("."))


def fresh_adapter(first: LanguageModel, adapter: str, seed: int = 0) -> LanguageModel:
    """A further player on the backbone of `first`, with an adapter of the same shape."""
    if adapter not in first.model.peft_config:
        with adapter_seed(adapter, seed):
            first.model.add_adapter(adapter, copy.deepcopy(first.model.peft_config[first.adapter]))
    return as_player(first, first.model, adapter)


def as_player(first: LanguageModel, peft: Any, adapter: str) -> LanguageModel:
    """The player that an adapter makes of a backbone; its weights may be trained."""
    player = replace(first, model=peft.eval(), adapter=adapter, counters=Counters(), heads={})
    if player.shards is not None:
        player.shards.carry(peft)
    for parameter in player.parameters():
        parameter.requires_grad_(True)
    return player


@contextmanager
def adapter_seed(adapter: str, seed: int) -> Iterator[None]:
    """Fresh adapters are the same in every process, and drawing them moves no other stream of random numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "adapter", adapter))
        yield
