"""One player's language model: a model of its own, or one adapter among several on a shared backbone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reflectrl.core.prompts.chat import Chat
from reflectrl.core.prompts.tokens import encode_text
from reflectrl.core.types import named_seed
from reflectrl.models.backend import Backend, Counters
from reflectrl.models.cards import CARD, HEADS, OPTION_HEAD, fingerprint
from reflectrl.models.machine import Mixed, autocast, is_mixed, pass_bytes
from reflectrl.models.options import new_option_head
from reflectrl.models.packed import PackedBackend
from reflectrl.models.plain import PlainBackend
from reflectrl.models.seq2seq import Seq2SeqBackend, is_encoder_decoder
from reflectrl.models.shards import split_frozen


@dataclass(frozen=True)
class EngineOptions:
    """Options of the engine that give the same numbers as the model's own code.

    `verification.py` checks that when a model is loaded.

    Attributes:
        packed: use the packed backend; False uses the plain backend.
        blocks: packed backend: use the engine's own loop over blocks, for the families that it knows. False uses the
            library's forward pass.
        compiled: with `blocks`: run everything except attention through torch.compile.
        batched: packed backend: attend many prompts together, as GPUs need it. False attends them one by one, which is
            as fast on CPUs.
        graphs: with `blocks`: write by recorded passes (`graphs.py`), as GPUs need it.
        rows: packed backend: compute only the needed rows of the LM head. False runs the model's own code for all rows.
        cache: plain backend: use the library's KV cache while writing.
    """

    packed: bool = True
    blocks: bool = True
    compiled: bool = False
    batched: bool = False
    graphs: bool = False
    rows: bool = True
    cache: bool = True


@dataclass
class LanguageModel:
    """One player's model and tokenizer, with its settings.

    Attributes:
        model: a `PreTrainedModel`, or the `PeftModel` that carries several players' adapters.
        adapter: name of this player's adapter; None if the player owns all weights.
        context: longest sequence, in tokens.
        base: name or folder of the adapters' backbone (written beside a saved adapter).
        mixed: compute matrix products in bfloat16 within `training` ("auto": where the hardware is fast at it).
        mixed_play: the same within `playing`.
        engine_options: choice of backend and of its options.
        counters: counts of this player's computation so far.
        chat: text that a chat template puts around prompts; None if no template is used.
        heads: weights of further heads on the model's hidden states, such as a critic. Saved with the model.
        option_head: weight (D,) of the head that scores options (`options.py`). It learns and is saved with the model.
            None if no policy has needed it yet.
        backbone_tokenizer: fingerprint of the backbone's tokenizer, if the adapter's tokenizer differs from it.
        brings_embeddings: True if the adapter came with embeddings for its backbone. They are saved with it.
    """

    model: Any
    tokenizer: Any
    context: int
    adapter: str | None = None
    base: str = ""
    mixed: Mixed = "off"
    mixed_play: Mixed = "off"
    engine_options: EngineOptions = EngineOptions()
    counters: Counters = field(default_factory=Counters)
    heads: dict[str, Tensor] = field(default_factory=dict)
    option_head: nn.Parameter | None = None
    chat: Chat | None = None
    backbone_tokenizer: str = ""
    brings_embeddings: bool = False

    @cached_property
    def core(self) -> nn.Module:
        """The Hugging Face model without the PEFT wrapper."""
        if self.adapter is None:
            return self.model
        return self.model.get_base_model()

    @cached_property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def encoder_decoder(self) -> bool:
        """True for a model with an encoder and a decoder (`seq2seq.py`), False for a causal language model."""
        return is_encoder_decoder(self.core)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return self.core.get_input_embeddings().weight.dtype  # type: ignore[operator]

    @property
    def _shape(self) -> Any:
        """Configuration of the part of the model that reads text."""
        config: Any = self.core.config
        if hasattr(config, "get_text_config"):  # multimodal models nest it
            return config.get_text_config()
        return config

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return int(self._shape.num_hidden_layers)

    @property
    def pass_tokens(self) -> int:
        """Approximate number of tokens per pass. On CPUs, the activations of a thousand tokens stay in the caches."""
        if self.device.type == "cpu":
            return 1024
        return 32_768

    @property
    def pass_bytes(self) -> int:
        """Approximate bytes of activations that a learner's pass may keep (`machine.pass_bytes`)."""
        return pass_bytes(self.device)

    @property
    def taps(self) -> int:
        """Number of tokens that the model's short convolutions see (`canon.py`); 0 for models without them."""
        return int(getattr(self._shape, "canon_taps", 0))

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers, as kept in play. 0 on the plain backend.

        Inputs of short convolutions are kept too, in float32.
        """
        if not self.engine_options.packed:
            return 0  # nothing is kept
        config = self._shape
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = self.dtype
        if is_mixed(self.device, self.mixed_play):
            dtype = torch.bfloat16  # as autocast computes keys and values
        inputs = self.hidden_size * torch.float32.itemsize if self.taps else 0
        return int(self.layers * (2 * heads * width * dtype.itemsize + inputs))

    @property
    def activation_bytes(self) -> int:
        """Approximate bytes that a pass keeps per token for the gradient: 20 vectors per layer (measured: 14 to 16)."""
        return 20 * self.hidden_size * self.layers * self.dtype.itemsize

    @property
    def logits_bytes(self) -> int:
        """Approximate bytes of a scored token's logits, softmax and gradient, all in float32."""
        return 3 * self.core.get_output_embeddings().weight.shape[0] * torch.float32.itemsize  # type: ignore[operator]

    @property
    def hidden_size(self) -> int:
        return int(self.core.get_input_embeddings().weight.shape[1])  # type: ignore[operator]

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights that a learner may change: all of the model's, or only this player's adapter's."""
        head = [] if self.option_head is None else [self.option_head]
        return [*(p for name, p in self.model.named_parameters() if self._is_own(name)), *head]

    def ensure_option_head(self) -> nn.Parameter:
        """Return the weight of the head that scores options. An untrained head is made if there is none."""
        if self.option_head is None:
            self.option_head = new_option_head(self.hidden_size, self.device)
        return self.option_head

    def _is_own(self, name: str) -> bool:
        """Return whether a weight belongs to this player. PEFT puts the adapter's name into the weight's name."""
        return self.adapter is None or self.adapter in name.split(".")

    def activate(self) -> None:
        """Activate this player's adapter on the shared backbone, without changing which weights are trainable."""
        if self.adapter is None or self.model.active_adapter == self.adapter:
            return
        # `set_adapter` also freezes all other adapters, and gradients of their earlier passes would be lost.
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.model.set_adapter(self.adapter)
        self.model.requires_grad_(False)
        for parameter in trainable:
            parameter.requires_grad_(True)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Set training mode within the block (dropout on, mixed precision), and evaluation mode after it."""
        self.model.train()
        try:
            with autocast(self.device, self.mixed):
                yield
        finally:
            self.model.eval()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Disable gradients within the block, and use mixed precision if `mixed_play` asks for it."""
        with torch.inference_mode(), autocast(self.device, self.mixed_play):
            yield

    @cached_property
    def backend(self) -> Backend:
        """Backend that reads, scores and writes with this model."""
        if self.encoder_decoder:
            return Seq2SeqBackend(self)
        if self.engine_options.packed:
            return PackedBackend(self)
        return PlainBackend(self)

    @property
    def end(self) -> int:
        """Token that ends a written text: the chat template's end of a turn, or end-of-text."""
        if self.chat is not None:
            return int(self.chat.end)
        return int(self.tokenizer.eos_token_id)

    @property
    def ends(self) -> frozenset[int]:
        """All tokens at which generation stops."""
        ends = set[int]()
        if self.chat is not None:
            ends.add(int(self.chat.end))
        if self.tokenizer.eos_token_id is not None:
            ends.add(int(self.tokenizer.eos_token_id))  # chat models may end a text with it, too
        return frozenset(ends)

    def encode(self, text: str, behind: str = "") -> list[int]:
        """Encode a text that follows the text `behind`. Control tokens in it are plain text (see `encode_text`)."""
        return encode_text(self.tokenizer, text, behind)

    def saver(self, **card: Any) -> Callable[[Path], None]:
        """Return a function that writes the model (`save`)."""
        return partial(self.save, **card)

    def save(self, folder: Path, **card: Any) -> None:
        """Write weights (safetensors), tokenizer, and a card that identifies the tokenizer."""
        if self.adapter is None:
            self.model.save_pretrained(folder)
            frozen = {name for name, weight in self.model.named_parameters() if not weight.requires_grad}
            split_frozen(folder, frozen)
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
        heads = dict(self.heads)
        if self.option_head is not None:
            heads[OPTION_HEAD] = self.option_head.detach().cpu()
        if heads:
            save_file(heads, folder / HEADS)
        about = {"tokenizer": fingerprint(self.tokenizer), "base": self.base, "context": self.context, **card}
        if self.chat:
            about["chat"] = asdict(self.chat)
        if self.backbone_tokenizer:
            about["backbone_tokenizer"] = self.backbone_tokenizer
        (folder / CARD).write_text(json.dumps(about, indent=1), encoding="utf-8")

    def frozen_copy(self, name: str = "reference") -> LanguageModel:
        """Return a copy with frozen weights: a further adapter on the same backbone, or a copy of the model."""
        head = copy.deepcopy(self.option_head)
        if head is not None:
            head.requires_grad_(False)
        if self.adapter is None:
            model = copy.deepcopy(self.model).requires_grad_(False).eval()
            return replace(self, model=model, counters=Counters(), option_head=head)
        frozen = fresh_adapter(self, name)
        frozen.load_weights(self.weights())
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        return frozen

    def weights(self, frozen: bool = True) -> dict[str, Tensor]:
        """Copy this player's own weights, under names without the adapter's name.

        Weights that two parts share, such as tied embeddings, are copied once, under the name of the first part.

        Args:
            frozen: copy frozen layers (`freezing`) too.
        """
        own = self.model.state_dict(keep_vars=True)
        fixed = set[int]()
        if not frozen and self.adapter is None:
            fixed = {id(p) for p in self.model.parameters() if not p.requires_grad}
        names = dict[int, str]()
        for name, tensor in own.items():
            if self._is_own(name) and id(tensor) not in fixed:
                names.setdefault(id(tensor), name)
        weights = {renamed(name, self.adapter, "adapter"): own[name].detach().clone() for name in names.values()}
        if self.option_head is not None:
            weights[OPTION_HEAD] = self.option_head.detach().clone()
        return weights

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Set the weights that `weights` returned."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                if name == OPTION_HEAD:
                    self.ensure_option_head().copy_(value)
                    continue
                own[renamed(name, "adapter", self.adapter)].copy_(value)


def renamed(name: str, old: str | None, new: str | None) -> str:
    """Replace the adapter's name in a weight's name. Without an adapter, the name is returned unchanged."""
    if old is None or new is None:
        return name
    return ".".join(new if part == old else part for part in name.split("."))


def fresh_adapter(first: LanguageModel, adapter: str, seed: int = 0) -> LanguageModel:
    """Make a further player on the backbone of `first`, with an adapter of the same shape."""
    if adapter not in first.model.peft_config:
        with adapter_seed(adapter, seed):
            first.model.add_adapter(adapter, copy.deepcopy(first.model.peft_config[first.adapter]))
    return as_player(first, first.model, adapter)


def as_player(first: LanguageModel, peft: Any, adapter: str) -> LanguageModel:
    """Make the player of an adapter on the backbone of `first`, with trainable weights."""
    player = replace(first, model=peft.eval(), adapter=adapter, counters=Counters(), heads={}, option_head=None)
    for parameter in player.parameters():
        parameter.requires_grad_(True)
    return player


@contextmanager
def adapter_seed(adapter: str, seed: int) -> Iterator[None]:
    """Seed torch within the block, so that a fresh adapter is the same in every process.

    Torch's other random numbers are not affected: its state is restored after the block.
    """
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "adapter", adapter))
        yield
