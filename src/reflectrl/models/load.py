"""Loading language models in Hugging Face format: by folder or name, onto a device, with adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from reflectrl import distributed
from reflectrl.config import ModelConfig
from reflectrl.digests import require_undamaged
from reflectrl.models.cards import CARD, check_card, read_json
from reflectrl.models.forward import fuse_activations
from reflectrl.models.known import prove_once
from reflectrl.models.lm import HEADS, LanguageModel, Shortcuts, adapter_seed, as_player, fresh_adapter
from reflectrl.models.machine import keep_memory
from reflectrl.models.memory import free_bytes, refuse_unless_fitting
from reflectrl.models.proof import prove, tell
from reflectrl.models.quantised import let_gradients_flow, quantisation
from reflectrl.models.sources import find_model
from reflectrl.plugins import names, one_line, suggestion
from reflectrl.prompts.chat import Chat, chat_of, has_template
from reflectrl.types import UserError

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""What families call the most tokens that a sequence may have."""

WINDOWS = ("sliding_window", "attention_chunk_size")
"""What families call the number of tokens beyond which some layers no longer look back."""


def pick_device(name: str) -> torch.device:
    """The best device at hand for "auto"; anything else as torch names it.

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
    """Load a causal language model: by folder, GGUF file, or the name of a model that is already on this machine.

    Nothing is downloaded. A folder that holds a saved adapter is loaded onto its backbone.

    Args:
        adapter: name of the player's adapter: a fresh one where `config.lora_rank` asks for LoRA.
        seed: decides the weights of a fresh adapter.

    Raises:
        UserError: nothing loadable is there, a file is not what was written there, or the weights and the tokenizer do
            not belong together.
    """
    source = find_model(str(source))
    folder = Path(source)
    require_undamaged(folder)
    heads = load_file(folder / HEADS) if (folder / HEADS).is_file() else {}
    if is_adapter(folder):
        base = backbone_of(folder)
        require_undamaged(Path(base))
        owner, player = _load_backbone(base, config), adapter or "policy"
        check_card(folder, owner.tokenizer)
        from peft import PeftModel

        with _fitting(folder, owner.base):
            peft = PeftModel.from_pretrained(owner.model, str(folder), adapter_name=player, is_trainable=True)
        adapted = prove(as_player(owner, peft, player), str(folder))
        return replace(adapted, heads=heads, chat=chat_in(folder, adapted.tokenizer, adapted.base, config.chat))
    owner = _load_backbone(source, config)
    owner = replace(owner, heads=heads, chat=chat_in(folder, owner.tokenizer, source, config.chat))
    check_card(folder, owner.tokenizer)
    if config.lora_rank == 0 or adapter is None:
        return owner
    from peft import LoraConfig, get_peft_model  # slow to import, and needed for adapters only

    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in owner.model.modules()),  # GPT-2's linear layers
        task_type="CAUSAL_LM",
    )
    with adapter_seed(adapter, seed):
        return as_player(owner, get_peft_model(owner.model, lora, adapter_name=adapter), adapter)


def is_adapter(source: str | Path) -> bool:
    """Whether a folder holds a saved adapter."""
    return (Path(source) / "adapter_config.json").is_file()


def backbone_of(source: str | Path) -> str:
    """The model whose weights a source stands on: for a saved adapter its backbone, otherwise the source itself."""
    return str(_adapter_settings(Path(source)).get("base_model_name_or_path") if is_adapter(source) else source)


def second_player(first: LanguageModel, adapter: str, folder: Path | None = None, chat: str = "auto") -> LanguageModel:
    """A further player on the backbone of `first`: a fresh adapter, or one loaded from a folder.

    Args:
        chat: how a loaded one is to be spoken to (`model.chat`); a fresh one is spoken to as `first` is.

    Raises:
        UserError: what the folder holds does not fit the backbone.
    """
    if first.adapter is None:
        raise ValueError("only adapters share a backbone")
    if folder is None:
        return fresh_adapter(first, adapter)
    require_undamaged(folder)
    check_card(folder, first.tokenizer)
    if (folder / "adapter_config.json").is_file():
        _adapter_settings(folder)
    with _fitting(folder, first.base):
        first.model.load_adapter(str(folder), adapter, is_trainable=True)
    player = prove(as_player(first, first.model, adapter), str(folder))
    return replace(player, chat=chat_in(folder, player.tokenizer, player.base, chat))


def chat_in(folder: Path, tokenizer: Any, base: str, how: str, system: str = "") -> Chat | None:
    """How the model in a folder is to be spoken to: as the players of its card were, or by its chat template.

    Args:
        base: the model's name, for errors.
        system: a system prompt with which the template is tried.

    Raises:
        UserError: a template is asked for and there is none, or it cannot be used.
    """
    card = read_json(folder / CARD) if (folder / CARD).is_file() else None
    if how == "off":
        return None
    if card is not None and "chat" in card:
        try:
            return Chat(**card["chat"])
        except TypeError as error:
            raise UserError(f"{folder / CARD}: 'chat' must have 'before', 'after' and 'end'") from error
    if how == "auto" and (card is not None or not has_template(tokenizer)):
        return None  # trained without a template, or none is there
    if not has_template(tokenizer):
        raise UserError(f"model {base!r} has no chat template; set model.chat to auto or off")
    return chat_of(tokenizer, system, base)


def load_tokenizer(source: str, config: ModelConfig) -> Any:
    """The tokenizer of a model.

    Raises:
        UserError: there is no such model, its files cannot be read, it would run foreign code, or texts cannot end.
    """
    options = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
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
    """Whatever the loaders raise within the block, of many kinds, means that this is not a model to be loaded."""
    try:
        yield
    except Exception as error:
        if not Path(source).exists():  # the library would speak of its connection, though it was told to make none
            about = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
            near = suggestion(source, names("models"))
            raise UserError(f"model {source!r} {about}{near if 'mean' in near else ''}") from error
        raise UserError(
            f"model {source!r} cannot be loaded as a Hugging Face model: {one_line(error)[:200]}"
        ) from error


def _load_backbone(source: str, config: ModelConfig) -> LanguageModel:
    device, ranks = pick_device(config.device), distributed.launched()[1] if config.shard else 1
    if device.type in ("cpu", "cuda"):
        refuse_unless_fitting(source, config, free_bytes(device) * (ranks if device.type == "cuda" else 1))
    options = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
    quantised, tokenizer = quantisation(config, device), load_tokenizer(source, config)
    with _loading(source):
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, config.dtype), **options, **quantised
        )
        if quantised:
            let_gradients_flow(model)
        elif ranks == 1:
            model.to(device)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(f"model {source!r} belongs to another tokenizer ({rows} embeddings, {len(tokenizer)} tokens)")
    if config.backend != "plain" and ranks == 1:
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
            # Weights begin anywhere in a mapped file, which costs a fifth of the time of decoding's small products.
            parameter.data = parameter.data.clone()
    if ranks > 1:
        lm = LanguageModel(model.eval(), tokenizer, _context(model.config, config, False), None, source)
        from reflectrl.models.dividing import divide  # torch's FSDP takes seconds to import

        return divide(lm, source, device)
    context, precisions = _context(model.config, config, True), (config.mixed_precision, config.mixed_play)
    packed = config.backend != "plain"
    shortcuts = Shortcuts(packed, compiled=config.compile and packed, batched=device.type != "cpu")
    lm = prove_once(LanguageModel(model.eval(), tokenizer, context, None, source, *precisions, shortcuts), source)
    if config.backend == "packed" and not lm.shortcuts.packed:
        raise UserError(
            f"model {source!r} gives other numbers on the packed backend; set model.backend to auto or plain"
        )
    whole = _context(model.config, config, False)
    if not lm.shortcuts.packed:
        return replace(lm, context=whole)
    if context < whole:
        tell(lm, source, [f"it reads at most {context} tokens, its window; with model.backend=plain it reads {whole}"])
    return lm


def refuse_kernels(source: str, **options: Any) -> None:
    """Raise ValueError if a model's `config.json` wants a kernel of the hub to attend with ("owner/name").

    The library fetches and runs such compiled code where its package `kernels` is installed, whatever it was told of
    foreign code.

    Args:
        source: folder, or name of a model.
        options: how it is looked for, as for `from_pretrained`.
    """

    def attentions(settings: Mapping[str, Any]) -> Iterator[str]:
        for key, value in settings.items():
            if "attn_implementation" in key:
                yield from map(str, value.values() if isinstance(value, Mapping) else [value])
            elif isinstance(value, Mapping):
                yield from attentions(value)

    for name in attentions(PretrainedConfig.get_config_dict(source, **options)[0]):
        if "/" in name:
            raise ValueError(f"it wants the kernel {name!r}, which is foreign code, to attend with")


def _adapter_settings(folder: Path) -> dict[str, Any]:
    """What a saved adapter says of itself; UserError where it would have PEFT import a module that it names."""
    path = folder / "adapter_config.json"
    found = read_json(path)
    if found.get("megatron_config") is not None:
        raise UserError(f"{path} names a module to be imported (megatron_core); such adapters are not loaded")
    return found


@contextmanager
def _fitting(folder: Path, base: str) -> Iterator[None]:
    """Whatever PEFT raises within the block is the user's mistake: another backbone, or a broken folder."""
    try:
        yield
    except Exception as error:
        raise UserError(f"adapter {folder} does not fit the model {base!r}: {one_line(error)[:200]}") from error


def _context(model: Any, config: ModelConfig, packed: bool) -> int:
    """The longest sequence: the recipe's (0: as long as the model was made for), within the model's positions.

    The engine (`packed`) also stays within windows, and where rotary positions depend on the length of what is read:
    it knows of neither, and beyond them a row's result would depend on the other rows of its batch.
    """
    shape = model.get_text_config()
    limits = [getattr(shape, name, None) for name in (*POSITIONS, *(WINDOWS if packed else ()))]
    rope = getattr(shape, "rope_parameters", None) or {}
    if packed and rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings"))
    return min(int(limit) for limit in (config.context, *limits) if limit)
