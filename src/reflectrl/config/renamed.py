"""Keys and values of recipes that once had other names: they are refused, and the new name is told."""

from __future__ import annotations

from typing import Any

KEYS = {
    "rl.passes": "rl.update_epochs",
    "offline.wish": "offline.target_return",
    "play.drafts": "play.speculative",
    "play.memory": "play.result_cache",
    "play.cache_mib": "play.kv_cache_mib",
    "text.learn_sampling": "text.eval_sampling",
}
"""Old dotted key → new one."""
VALUES = {("rl.curriculum", "thirds"): "equal"}
"""Key and old value → new value."""


def new_name(key: str, value: Any = None) -> str:
    """What to say of a dotted key, or of one of its values, that has another name now; "" if it never had one."""
    found = KEYS.get(key) if value is None else VALUES.get((key, str(value)))
    return f"; it is called {found!r} now" if found else ""
