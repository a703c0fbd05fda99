"""Models that name compiled code to be fetched and run: kernels of the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig


def refuse_kernels(source: str, **options: Any) -> None:
    """Raise ValueError if a model's `config.json` wants a kernel of the hub to attend with ("owner/name").

    The library runs such a kernel where its package `kernels` is installed, whatever it was told of foreign code.

    Args:
        source: folder, or name of a model.
        options: how it is looked for, as for `from_pretrained`.
    """
    settings, _ = PretrainedConfig.get_config_dict(source, **options)
    for name in _attention(settings):
        if "/" in name:
            raise ValueError(f"it wants the kernel {name!r}, which is foreign code, to attend with")


def _attention(settings: Mapping[str, Any]) -> Iterator[str]:
    """How the model wants to attend, and the models in it."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from (_attention(value) if "attn_implementation" not in key else map(str, value.values()))
        elif "attn_implementation" in key:
            yield str(value)
