"""Protection of keys: a server gets only the key that is meant for it, and no answer keeps a copy of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from reflectrl.core.config.trust import is_loopback

SENT = (
    "accept", "accept-encoding", "authorization", "api-key", "connection", "content-length", "content-type", "host",
    "transfer-encoding", "user-agent",
)  # fmt: skip
"""Headers that a server needs, besides the client's headers about itself ("x-stainless-...")."""
SHORTEST = 6
"""Length of the shortest key that is masked in answers. A shorter key is no secret, and may be an ordinary word."""


def http_settings(address: str, key: str, timeout: float, is_azure: bool = False) -> dict[str, Any]:
    """Make the settings of an HTTP client of the `openai` package, for one server.

    The package sends the values of OPENAI_ORG_ID, OPENAI_PROJECT_ID, OPENAI_CUSTOM_HEADERS and AZURE_OPENAI_AD_TOKEN to
    every server. Here each header that is not needed is dropped unless the server is OpenAI's own, and no other secret
    takes the place of the key.

    Args:
        address: address of the API.
        key: key for that server; "" if it asks for none.
        timeout: seconds.
        is_azure: True if the server is Azure's, which wants the key in another header.
    """
    parts = urlsplit(address)
    is_openai = parts.scheme == "https" and f".{parts.hostname}".endswith(".api.openai.com") and not is_azure

    async def only_what_is_meant(request: Any) -> None:
        if is_openai:
            return
        for name in list(request.headers):
            if name.lower() not in SENT and not name.lower().startswith("x-stainless-"):
                del request.headers[name]
        own, other = ("api-key", "authorization") if is_azure else ("authorization", "api-key")
        request.headers[own] = (key or "none") if is_azure else f"Bearer {key or 'none'}"
        if other in request.headers:
            del request.headers[other]

    return {
        "timeout": timeout,
        "follow_redirects": False,
        "trust_env": not is_loopback(parts.hostname),  # no proxy for this machine: it might be elsewhere
        "event_hooks": {"request": [only_what_is_meant]},
    }


def masked(answer: Any, key: str) -> Any:
    """Replace the key wherever an answer (text, or a JSON value) repeats it. Everything else stays as it is."""
    if len(key) < SHORTEST:
        return answer
    if isinstance(answer, str):
        return answer.replace(key, "***")
    if isinstance(answer, list):
        return [masked(item, key) for item in answer]
    if isinstance(answer, dict):
        return {masked(name, key): masked(item, key) for name, item in answer.items()}
    return answer
