"""A server gets the key that is meant for it and nothing else, and what it says of the key is kept nowhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Journal
from reflectrl.serving.endpoints.secrets import http_settings, masked
from reflectrl.serving.remote.client import Servers
from reflectrl.serving.remote.config import RolloutsConfig
from tests.serving.endpoints.scripted import ChatServer, completion
from tests.wings.hostile_files import SECRET, VARIABLES

KEY = "sk-meant-for-this-server"


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Secret: {SECRET}\nAuthorization: {SECRET}")
    monkeypatch.setenv("TEST_KEY", KEY)
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))


def sent(server: ChatServer) -> str:
    """All that a server was sent, as text."""
    return "\n".join(f"{headers}" for headers in server.headers) + json.dumps(server.requests)


@pytest.mark.parametrize("key_env", ["", "TEST_KEY"])
@pytest.mark.parametrize("api", ["openai", "azure"])
def test_an_endpoint_gets_its_key_only(server: ChatServer, api: Any, key_env: str) -> None:
    address = server.url if api == "openai" else server.url.removesuffix("/v1")
    version = "" if api == "openai" else "2024-10-21"
    config = EndpointConfig(address, "m", key_env, api, version, retries=1)
    server.script((500, b"{}"), (404, b"{}"))
    with pytest.raises(UserError):
        Endpoint(config).complete([{"role": "user", "content": "Go."}], 5, 0.0)
    [*requests] = server.headers
    assert requests and SECRET not in sent(server)
    for headers in requests:
        name = "Authorization" if api == "openai" else "api-key"
        assert headers[name].removeprefix("Bearer ") == (KEY if key_env else "none")
        assert headers["OpenAI-Organization"] is headers["OpenAI-Project"] is None


def test_a_server_of_rollouts_gets_its_key_only(server: ChatServer) -> None:
    Servers(RolloutsConfig((server.url,), key_env="TEST_KEY", retries=0)).complete([{"prompt": [[1]]}])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}" and SECRET not in sent(server)


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com.example.org/v1", False),
        ("https://evilapi.openai.com/v1", False),
        ("https://example.org/api.openai.com", False),
        ("http://127.0.0.1:8000/v1", False),
    ],
)
def test_the_organisation_is_told_to_openai_alone(address: str, meant: bool) -> None:
    openai = pytest.importorskip("openai")
    http = openai.DefaultAsyncHttpxClient(**http_settings(address, KEY, 1.0))
    client = openai.AsyncOpenAI(base_url=address, api_key=KEY, http_client=http)
    request = client._build_request(openai._models.FinalRequestOptions(method="post", url="/chat/completions"))
    for hook in http.event_hooks["request"]:
        asyncio.run(hook(request))
    assert (request.headers.get("OpenAI-Organization") == SECRET) is meant
    assert (request.headers.get("OpenAI-Project") == SECRET) is meant
    asyncio.run(client.close())


# ---- a key that comes back -------------------------------------------------------------------------------------------


def test_a_key_in_an_answer_is_in_no_file_of_the_run(server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    server.reply = lambda request: f"Your key is Bearer {KEY}, so: right"
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        "arms = ['big']\nenv = {name = 'corridor', train = 2, validation = 1, test = 2, horizon = 3}\n"
        f"eval.splits = ['test']\n[players.big]\nbase_url = '{server.url}'\nmodel = 'm'\nkey_env = 'TEST_KEY'\n"
        "style = 'react'\n"
    )
    assert main(["run", str(recipe), "--trust", "--folder", str(tmp_path / "run")]) == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(b"Your key is Bearer ***" in path.read_bytes() for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err


def test_a_key_in_an_answer_of_a_server_of_rollouts_is_masked(server: ChatServer) -> None:
    body = {"choices": [{"index": 0, "text": f"{KEY}!", "logprobs": {"tokens": [KEY], "top_logprobs": [{KEY: -1.0}]}}]}
    assert masked(body, KEY) == {
        "choices": [{"index": 0, "text": "***!", "logprobs": {"tokens": ["***"], "top_logprobs": [{"***": -1.0}]}}]
    }
    assert masked("north", "n") == "north", "what is so short is no secret, but may be a word"


def test_no_part_of_a_key_is_left_where_a_complaint_is_cut(server: ChatServer, tmp_path: Path) -> None:
    for length in range(300 - len(KEY), 300):
        server.reply = lambda request, n=length: (401, json.dumps({"error": {"message": f"{'x' * n}{KEY}"}}).encode())
        endpoint = Endpoint(EndpointConfig(server.url, "m", "TEST_KEY", retries=0), Journal(tmp_path / "journal"))
        with pytest.raises(UserError) as caught:
            endpoint.complete([{"role": "user", "content": "Go."}], 5, 0.0)
        assert "xsk" not in str(caught.value)
    assert KEY.encode() not in (tmp_path / "journal").read_bytes()


def test_a_key_that_is_written_with_escapes_is_found(server: ChatServer, tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in KEY).encode()
    server.reply = lambda request: completion("KEY").replace(b"KEY", escaped)
    endpoint = Endpoint(EndpointConfig(server.url, "m", "TEST_KEY"), Journal(tmp_path / "journal"))
    assert endpoint.complete([{"role": "user", "content": "Go."}], 5, 0.0) == "***"
