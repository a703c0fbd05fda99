"""Loading language models in Hugging Face format: by folder or name, onto a device, with adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from reflectrl.core.config import ModelConfig
from reflectrl.core.config.recipe import LEAST_CONTEXT
from reflectrl.core.plugins import names, one_line, suggestion
from reflectrl.core.prompts.chat import Chat, chat_of, has_template
from reflectrl.core.types import UserError
from reflectrl.models import canon  # noqa: F401  (registers the family canon_llama)
from reflectrl.models.adapters import (
    SETTINGS,
    adapter_settings,
    backbone_of,
    fitting,
    has_tokenizer,
    is_adapter,
    make_room,
    require_shared_embeddings,
)
from reflectrl.models.cards import CARD, HEADS, OPTION_HEAD, check_card, fingerprint, read_json
from reflectrl.models.forward import fuse_activations
from reflectrl.models.lm import EngineOptions, LanguageModel, adapter_seed, as_player, fresh_adapter
from reflectrl.models.machine import keep_memory
from reflectrl.models.memory import free_bytes, refuse_unless_fitting
from reflectrl.models.quantised import let_gradients_flow, quantisation
from reflectrl.models.seq2seq import is_encoder_decoder
from reflectrl.models.soundness import require_sound
from reflectrl.models.sources import files_of, find_model
from reflectrl.models.strangers import hushed, require_all_loaded, require_quick_patterns, within_weights
from reflectrl.models.verification import verify, warn_once
from reflectrl.models.verified_cache import verify_once

CHAT = {"before": str, "after": str, "end": int}
"""Keys of the "chat" entry of a card, and their types."""

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Names of the longest sequence, in tokens, in the configurations of different families."""

WINDOWS = ("sliding_window", "attention_chunk_size")
"""Names of the attention window, in tokens, in the configurations of different families."""


def pick_device(name: str) -> torch.device:
    """Return the best available device for "auto", or the device that torch calls `name`.

    Raises:
        UserError: torch does not know such a device, or this machine has none.
    """
    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise UserError(f"unknown device {name!r}: {one_line(error)}") from error
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise UserError(f"no device {name!r}: torch sees {count} GPU{'' if count == 1 else 's'} here")
        if device.type == "mps" and not torch.backends.mps.is_available():
            raise UserError(f"no device {name!r} here")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(source: str | Path, config: ModelConfig, adapter: str | None = None, seed: int = 0) -> LanguageModel:
    """Load a language model from a folder, a GGUF file, or by the name of a model that is on this machine.

    Nothing is downloaded. A saved adapter is loaded onto its backbone. Encoder-decoder models serve text tasks only
    (`seq2seq.py`).

    Args:
        adapter: name of the player's adapter. A model without one gets a fresh one if `config.lora_rank` is above 0.
        seed: seed of the fresh adapter's weights.

    Raises:
        UserError: there is no loadable model, a file is damaged, or weights and tokenizer do not belong together.
    """
    source = find_model(str(source))
    folder = Path(source)
    require_sound(files_of(source), config.trust_remote_code)
    heads = _heads_in(folder)
    option_head = heads.pop(OPTION_HEAD, None)
    if is_adapter(folder):
        base = backbone_of(folder)
        owner, player = _fit_backbone(_load_backbone(base, config), folder, config), adapter or "policy"
        from peft import PeftModel

        with _loading_adapter(folder, owner):
            peft = PeftModel.from_pretrained(owner.model, str(folder), adapter_name=player, is_trainable=True)
            require_adapter_loaded(peft, folder, player)
        adapted = verify(as_player(owner, peft, player), str(folder))
        chat = chat_in(folder, adapted.tokenizer, adapted.base, config.chat)
        return _with_option_head(replace(adapted, heads=heads, chat=chat), option_head)
    owner = _load_backbone(source, config)
    owner = replace(owner, heads=heads, chat=chat_in(folder, owner.tokenizer, source, config.chat))
    check_card(folder, owner.tokenizer)
    if config.lora_rank == 0 or adapter is None:
        return _with_option_head(owner, option_head)
    from peft import LoraConfig, get_peft_model  # slow to import, and needed for adapters only

    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in owner.model.modules()),  # GPT-2's linear layers
        task_type="SEQ_2_SEQ_LM" if owner.encoder_decoder else "CAUSAL_LM",
    )
    with adapter_seed(adapter, seed):
        fresh = as_player(owner, get_peft_model(owner.model, lora, adapter_name=adapter), adapter)
    return _with_option_head(fresh, option_head)


def _with_option_head(lm: LanguageModel, weight_D: torch.Tensor | None) -> LanguageModel:
    """Return the player with a saved head that scores options.

    Raises:
        UserError: the head belongs to a model of another size.
    """
    if weight_D is None:
        return lm
    if weight_D.shape != (lm.hidden_size,):
        raise UserError(f"{HEADS}: the head that scores options does not fit a model of width {lm.hidden_size}")
    return replace(lm, option_head=torch.nn.Parameter(weight_D.float().to(lm.device)))


def _heads_in(folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights of the heads beside a model; empty if there is no such file."""
    path = folder / HEADS
    try:
        return load_file(path) if path.is_file() else {}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def second_player(first: LanguageModel, adapter: str, folder: Path | None = None, chat: str = "auto") -> LanguageModel:
    """Make a further player on the backbone of `first`, with a fresh adapter or with an adapter from a folder.

    Args:
        chat: use of a chat template for a loaded adapter (`model.chat`). A fresh adapter uses the template of `first`.

    Raises:
        UserError: the adapter in the folder does not fit the backbone.
    """
    if first.adapter is None:
        raise ValueError("only adapters share a backbone")
    if folder is None:
        return fresh_adapter(first, adapter)
    require_sound(folder)
    tokenizer, backbone = first.tokenizer, first.backbone_tokenizer or fingerprint(first.tokenizer)
    if is_adapter(folder):
        adapter_settings(folder)
        if has_tokenizer(folder):
            tokenizer = load_tokenizer(str(folder), ModelConfig())
        with fitting(folder, first.base):
            require_shared_embeddings(first.core, folder, len(tokenizer))
    check_card(folder, tokenizer, backbone)
    with _loading_adapter(folder, first):
        first.model.load_adapter(str(folder), adapter, is_trainable=True)
        require_adapter_loaded(first.model, folder, adapter)
    first = replace(first, tokenizer=tokenizer, backbone_tokenizer=_unless_same(backbone, tokenizer))
    player = verify(as_player(first, first.model, adapter), str(folder))
    return replace(player, chat=chat_in(folder, tokenizer, player.base, chat))


def _fit_backbone(owner: LanguageModel, folder: Path, config: ModelConfig) -> LanguageModel:
    """Give a backbone the tokenizer in an adapter's folder, if there is one, and embeddings for all its tokens.

    Raises:
        UserError: the adapter was trained with another tokenizer, or embeddings are missing.
    """
    tokenizer = load_tokenizer(str(folder), config) if has_tokenizer(folder) else owner.tokenizer
    backbone = fingerprint(owner.tokenizer)
    check_card(folder, tokenizer, backbone)
    with fitting(folder, owner.base):
        brings_embeddings = make_room(owner.model, folder, len(tokenizer))
    return replace(
        owner,
        tokenizer=tokenizer,
        backbone_tokenizer=_unless_same(backbone, tokenizer),
        brings_embeddings=brings_embeddings,
    )


def _unless_same(backbone: str, tokenizer: Any) -> str:
    """Return the fingerprint of a backbone's tokenizer, or "" if `tokenizer` has the same tokens."""
    return "" if fingerprint(tokenizer) == backbone else backbone


def chat_in(folder: Path, tokenizer: Any, base: str, how: str, system: str = "") -> Chat | None:
    """Return the chat format of the model in a folder, from its card or its chat template; None for no template.

    Args:
        base: the model's name, for errors.
        how: the setting `model.chat`.
        system: system prompt for trying the template.

    Raises:
        UserError: a template is asked for and there is none, or it cannot be used.
    """
    card = read_json(folder / CARD) if (folder / CARD).is_file() else None
    if how == "off":
        return None
    if card is not None and "chat" in card:
        fields = card["chat"]
        if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != CHAT:
            raise UserError(f"{folder / CARD}: 'chat' must have 'before', 'after' (texts) and 'end' (a number)")
        return Chat(**fields)
    if how == "auto" and (card is not None or not has_template(tokenizer)):
        return None  # trained without a template, or there is none
    if not has_template(tokenizer):
        raise UserError(f"model {base!r} has no chat template; set model.chat to auto or off")
    return chat_of(tokenizer, system, base)


def load_tokenizer(source: str, config: ModelConfig) -> Any:
    """Load the tokenizer of a model.

    Raises:
        UserError: there is no such model, its files cannot be read, it would run foreign code, or it has no end-of-text
            token.
    """
    options = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
    require_sound(files_of(source), config.trust_remote_code)
    with _loading(source):
        if not config.trust_remote_code:
            refuse_kernels(source, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {source!r}: its tokenizer has no end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Turn any exception of the library's loaders within the block into a UserError that names the model."""
    try:
        with hushed():
            yield
    except UserError:
        raise
    except Exception as error:
        if not Path(source).exists():  # the library's message would be about a failed connection, which misleads
            about = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
            near = suggestion(source, names("models"))
            raise UserError(f"model {source!r} {about}{near if 'mean' in near else ''}") from error
        raise UserError(
            f"model {source!r} cannot be loaded as a Hugging Face model: {one_line(error)[:200]}"
        ) from error


def _load_backbone(source: str, config: ModelConfig) -> LanguageModel:
    device = pick_device(config.device)
    if device.type in ("cpu", "cuda"):
        refuse_unless_fitting(source, config, free_bytes(device))
    quantised, tokenizer = quantisation(config, device), load_tokenizer(source, config)
    with _loading(source):
        model = _read_weights(source, config, **quantised)
        if quantised:
            let_gradients_flow(model)
        else:
            model.to(device)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(f"model {source!r} belongs to another tokenizer ({rows} embeddings, {len(tokenizer)} tokens)")
    if config.backend != "plain":
        fuse_activations(model)
    if config.gradient_checkpointing:
        from reflectrl.models.checkpointing import recompute_layers

        recompute_layers(model, source)
    if config.frozen_layers:
        from reflectrl.models.freezing import freeze

        freeze(model, config.frozen_layers, source)
    if device.type == "cpu":
        keep_memory()
        for parameter in [] if quantised else model.parameters():
            # Weights in a memory-mapped file are unaligned, which costs a fifth of the time of decoding's products.
            parameter.data = parameter.data.clone()
    if (full_context := _context(model.config, config, False)) < LEAST_CONTEXT:
        raise UserError(f"model {source!r} reads at most {full_context} tokens; players need {LEAST_CONTEXT} or more")
    context, precisions = _context(model.config, config, True), (config.mixed_precision, config.mixed_play)
    is_seq2seq = is_encoder_decoder(model)
    if is_seq2seq and config.backend == "packed":
        raise UserError(f"model {source!r} is an encoder-decoder model; set model.backend to auto or plain")
    packed = config.backend != "plain" and not is_seq2seq
    gpu = device.type == "cuda"
    options = EngineOptions(packed, compiled=config.compile and packed, batched=device.type != "cpu", graphs=gpu)
    lm = verify_once(LanguageModel(model.eval(), tokenizer, context, None, source, *precisions, options), source)
    if config.backend == "packed" and not lm.engine_options.packed:
        raise UserError(
            f"model {source!r} gives different numbers on the packed backend; set model.backend to auto or plain"
        )
    if not lm.engine_options.packed:
        return replace(lm, context=full_context)
    if context < full_context:
        warn_once(
            lm,
            source,
            [f"it reads at most {context} tokens, its window; with model.backend=plain it reads {full_context}"],
        )
    return lm


def require_names_fit(source: str, config: ModelConfig) -> None:
    """Raise UserError if tensors of a model are missing or unexpected. The weights themselves are not loaded."""
    with _loading(source):
        _read_weights(source, config, device_map="meta")


def _read_weights(source: str, config: ModelConfig, **options: Any) -> Any:
    """Load a model from its files. Raise UserError if tensors are missing or unexpected."""
    options |= {"trust_remote_code": config.trust_remote_code, "local_files_only": True, "output_loading_info": True}
    where = {name: options[name] for name in ("trust_remote_code", "local_files_only")}
    settings = PretrainedConfig.get_config_dict(source, **where)[0]
    kind: Any = AutoModelForSeq2SeqLM if settings.get("is_encoder_decoder") else AutoModelForCausalLM
    with within_weights(files_of(source)):
        loaded: Any = kind.from_pretrained(source, dtype=getattr(torch, config.dtype), **options)
    model, info = loaded
    require_all_loaded(f"model {source!r}", info["missing_keys"], info["unexpected_keys"])
    return model


def refuse_kernels(source: str, **options: Any) -> None:
    """Raise ValueError if a model's `config.json` asks for an attention kernel from the hub ("owner/name").

    If the package `kernels` is installed, the library fetches and runs such compiled code even without
    `trust_remote_code`.

    Args:
        source: folder or name of a model.
        options: options of `from_pretrained` for finding the files.
    """

    def attentions(settings: Mapping[str, Any]) -> Iterator[str]:
        for key, value in settings.items():
            if not isinstance(value, Mapping):
                if "attn_implementation" in key:
                    yield str(value)
            elif "attn_implementation" in key:  # one for each part of the model
                yield from map(str, value.values())
            else:
                yield from attentions(value)

    for name in attentions(PretrainedConfig.get_config_dict(source, **options)[0]):
        if "/" in name:
            raise ValueError(f"it asks for the attention kernel {name!r}, which is foreign code")


@contextmanager
def _loading_adapter(folder: Path, owner: LanguageModel) -> Iterator[None]:
    """Guard PEFT while it loads an adapter in the block: it must not match patterns for ever, or contact the hub."""
    if is_adapter(folder):
        require_quick_patterns(folder / SETTINGS, adapter_settings(folder), owner.core)
        if not any(folder.glob("adapter_model.*")):  # PEFT would look for them at the hub, by the folder's name
            raise UserError(f"adapter {folder} has no weights (adapter_model.safetensors)")
    with fitting(folder, owner.base), hushed(), within_weights(folder):
        yield


def require_adapter_loaded(peft: Any, folder: Path, name: str) -> None:
    """Compare the tensors in an adapter's folder with the tensors that PEFT would save for it.

    Raises:
        UserError: some tensors are missing, so PEFT would draw them at random, or have no place in the model.
    """
    from peft.utils import get_peft_model_state_dict, load_peft_weights

    saved = set(load_peft_weights(str(folder), device="cpu"))
    own = set(get_peft_model_state_dict(peft, adapter_name=name, save_embedding_layers=False))
    # PEFT saves tied tensors once or twice, depending on its version. Both names belong to tensors of the model.
    model_keys = {key.replace(f".{name}", "") for key in peft.state_dict()}
    # Embeddings of the backbone are saved beside an adapter whose tokenizer has more tokens (`make_room`).
    model_keys |= {key for key in saved if key.endswith(("embed_tokens.weight", "wte.weight", "lm_head.weight"))}
    require_all_loaded(f"adapter {folder}", own - saved, saved - own - model_keys)


def _context(model: Any, config: ModelConfig, packed: bool) -> int:
    """Return the longest sequence in tokens: the recipe's `context` (0 means no limit), within the model's own limit.

    The packed backend does not implement attention windows, nor rotary positions that depend on the sequence length
    (longrope). So with `packed`, the limit is also the length up to which neither matters. Beyond it, a row's result
    would depend on the other rows of its batch.
    """
    shape = model.get_text_config()
    names = (*POSITIONS, *WINDOWS) if packed else POSITIONS
    limits = [getattr(shape, name, None) for name in names]
    rope = getattr(shape, "rope_parameters", None) or {}
    if packed and rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings"))
    return min(int(limit) for limit in (config.context, *limits) if limit)
