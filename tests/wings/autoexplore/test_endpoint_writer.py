"""Questions by a language model behind a real local server that answers from a script."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Journal
from reflectrl.wings.autoexplore.making.endpoint import EndpointWriter, built_in_prompt, questions_in
from reflectrl.wings.autoexplore.repository import Repository
from tests.wings.autoexplore.written import write_shop


class Model(BaseHTTPRequestHandler):
    """Asks about the tax of whatever thing the file is about; `server.says` overrides that."""

    def do_POST(self) -> None:
        server: Any = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["messages"][0]["content"]
        server.prompts.append(prompt)
        server.asked.append((self.path, self.headers["api-key"], self.headers["Authorization"]))
        thing = next((word for word in ("recipe", "ticket", "parcel") if f"compute_{word}_tax" in prompt), "goods")
        asked = f"1. Where is the {thing} tax computed?\n2. Why is {thing} number archived last year?"
        text = f"<think>hm?</think>Sure:\n{asked}"
        answer = {"choices": [{"message": {"role": "assistant", "content": server.says or text}}]}
        data = json.dumps(answer).encode()
        self.send_response(server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("openai")
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        made: Any = server
        made.prompts, made.asked, made.says, made.status = [], [], "", 200
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    return Repository.open(write_shop(tmp_path / "shop"))


def endpoint(server: Any, path: Path | None = None, model: str = "scripted") -> Endpoint:
    return Endpoint(EndpointConfig(f"http://127.0.0.1:{server.server_port}/v1", model, retries=0), Journal(path))


def test_its_questions_are_judged_like_others(server: Any, shop: Repository) -> None:
    questions, dropped = EndpointWriter(endpoint(server), 100, 0, built_in_prompt())("shop", shop, "MIT")
    assert {question.source for question in questions} == {"llm"}
    found = {(question.question, question.gold) for question in questions}
    assert ("Where is the ticket tax computed?", ("shop/tickets.py",)) in found
    assert all("goods" not in question.question for question in questions)
    assert {entry.stage for entry in dropped} == {"tasks"} and dropped[0].name.startswith("shop:")
    assert len(server.prompts) == sum(shop.size(path) > 200 for path in shop)


def test_it_stops_when_there_are_enough(server: Any, shop: Repository) -> None:
    questions, dropped = EndpointWriter(endpoint(server), 2, 0, built_in_prompt())("shop", shop, "MIT")
    assert len(questions) == 2
    accepted = EndpointWriter(endpoint(server), 100, 0, built_in_prompt())("shop", shop, "MIT")[0]
    beyond = [entry for entry in dropped if entry.reason == "beyond the largest number per file or repository"]
    assert all(entry.question in {question.question for question in accepted} for entry in beyond)
    again, _ = EndpointWriter(endpoint(server), 2, 0, built_in_prompt())("shop", shop, "MIT")
    assert again == questions


@pytest.mark.parametrize("says", ["no questions here", "?", "???\n?\n"])
def test_nonsense_gives_no_questions(server: Any, shop: Repository, says: str) -> None:
    server.says = says
    questions, dropped = EndpointWriter(endpoint(server), 9, 0, built_in_prompt())("shop", shop, "MIT")
    assert questions == []
    silent = [entry.name for entry in dropped if entry.reason == "the model's answer holds no question"]
    assert len(silent) + len({entry.name for entry in dropped if entry.question}) == len(server.prompts)


def test_a_refusal_is_one_line(server: Any, shop: Repository) -> None:
    server.status = 400
    with pytest.raises(UserError, match="scripted"):
        EndpointWriter(endpoint(server), 9, 0, built_in_prompt())("shop", shop, "MIT")


def test_answers_are_kept(server: Any, shop: Repository, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = EndpointWriter(endpoint(server, path), 9, 0, built_in_prompt())("shop", shop, "")
    asked = len(server.prompts)
    assert asked == path.read_text(encoding="utf-8").count('"answer"')
    assert EndpointWriter(endpoint(server, path), 9, 0, built_in_prompt())("shop", shop, "") == first
    assert len(server.prompts) == asked
    path.write_bytes(path.read_bytes()[:-5])  # cut off in the middle of the last line
    for _ in range(2):
        assert EndpointWriter(endpoint(server, path), 9, 0, built_in_prompt())("shop", shop, "") == first
    assert len(server.prompts) == asked + 1
    EndpointWriter(endpoint(server, path, "another"), 9, 0, built_in_prompt())("shop", shop, "")
    assert len(server.prompts) == 2 * asked + 1


def test_the_verb_asks_a_model(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://127.0.0.1:{server.server_port}/v1"
    words = ["--from", str(write_shop(tmp_path / "shop")), "--split-by", "task", "--store", str(tmp_path / "library")]
    assert main(["data", "autoexplore", *words, "--writer", "endpoint", "--endpoint", address, "--model", "m"]) == 0
    assert f"are sent to {address}: {len(server.prompts)} requests and about" in capsys.readouterr().out
    assert (tmp_path / "library" / "answers.jsonl").exists()


def test_the_verb_keeps_to_a_budget_and_goes_on(server: Any, tmp_path: Path, capsys: Any) -> None:
    address = f"http://127.0.0.1:{server.server_port}/v1"
    words = ["--from", str(write_shop(tmp_path / "shop")), "--split-by", "task", "--store", str(tmp_path / "library")]
    words += ["--writer", "endpoint", "--endpoint", address, "--model", "m", "--max-requests"]
    assert main(["data", "autoexplore", *words, "2"]) == 2
    err = capsys.readouterr().err
    assert "the budget is spent (max_requests = 2)" in err and err.count("\n") == 1 and len(server.prompts) == 2
    assert main(["data", "autoexplore", *words, "99"]) == 0
    assert len(server.prompts) == len(set(server.prompts)) > 2


def verb(server: Any, tmp_path: Path, *words: object) -> int:
    """`data autoexplore --writer endpoint` on the shop."""
    shop, store = write_shop(tmp_path / "shop"), tmp_path / "library"
    address = f"http://127.0.0.1:{server.server_port}/v1"
    command = ["--from", shop, "--split-by", "task", "--store", store, "--writer", "endpoint", "--endpoint", address]
    return main(["data", "autoexplore", *map(str, [*command, "--model", "m", *words])])


def test_azure_is_addressed_by_deployment_version_and_its_own_header(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("TEST_KEY", "not-a-real-key")
    azure = ["--api", "azure", "--key-env", "TEST_KEY"]
    assert verb(server, tmp_path, *azure) == 2
    assert "--api azure and --api-version VERSION go together" in capsys.readouterr().err and not server.asked
    assert verb(server, tmp_path, *azure, "--api-version", "2024-10-21", "--per-repo", 4) == 0
    path = "/v1/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert set(server.asked) == {(path, "not-a-real-key", None)}


class TestPrompt:
    def test_a_prompt_of_the_users_own_is_sent_and_its_digest_is_kept(self, server: Any, tmp_path: Path) -> None:
        source = "About {{ path | upper }}: {{ count }} Fragen, bitte.\n{{ text }}"
        own = tmp_path / "own.j2"
        own.write_text(source, encoding="utf-8")
        assert verb(server, tmp_path, "--prompt", own) == 0
        assert all(re.match(r"About [A-Z./]+: 4 Fragen, bitte\.\n", prompt) for prompt in server.prompts)
        account = json.loads((tmp_path / "library" / "written.json").read_text(encoding="utf-8"))
        assert account == {
            "writer": "endpoint", "model": "m", "prompt_sha256": hashlib.sha256(source.encode()).hexdigest(),
            "seed": 0, "per_repo": 300, "commits": 10, "split_by": "task", "reflectrl": version("reflectrl"),
        }  # fmt: skip
        asked = len(server.prompts)
        assert verb(server, tmp_path) == 0
        assert len(server.prompts) == 2 * asked, "another prompt is another question"
        account = json.loads((tmp_path / "library" / "written.json").read_text(encoding="utf-8"))
        assert account["prompt_sha256"] == built_in_prompt().sha256

    @pytest.mark.parametrize(
        ("source", "fragment"),
        [
            (None, "own.j2 cannot be read: No such file"),
            ("Ask about {{ path }}.", "own.j2: the template lacks {{ text }}"),
            ("{{ text }} {{ language }}", "own.j2: the template cannot be rendered: UndefinedError: 'language' is"),
            ("{{ text", "own.j2: the template cannot be rendered: TemplateSyntaxError"),
            ("{{ text }}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "not end"),
            ("{{ text }}{{ 9 ** 9 }}", "it computes powers"),
            ("{{ text }}{{ ''.__class__.__mro__ }}", "SecurityError"),
            ("{{ text }}{% include '/etc/passwd' %}", "the template cannot be rendered: TypeError"),
        ],
    )
    def test_a_wrong_one_is_one_line_before_anything_is_sent(
        self, server: Any, tmp_path: Path, capsys: Any, source: str | None, fragment: str
    ) -> None:
        own = tmp_path / "own.j2"
        if source is not None:
            own.write_text(source, encoding="utf-8")
        assert verb(server, tmp_path, "--prompt", own) == 2
        err = capsys.readouterr().err
        assert fragment in err and err.count("\n") == 1 and not server.prompts
        assert not (tmp_path / "library").exists()


def test_data_and_texts_are_asked_about_as_code_is(server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name, text in (
        ("prices.csv", "thing,price\n" * 30),
        ("guide.md", "How to pay. " * 30),
        ("a.py", "x = 1\n" * 60),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    EndpointWriter(endpoint(server), 99, 0, built_in_prompt())("mixed", Repository.open(folder), "MIT")
    assert {name for name in ("prices.csv", "guide.md", "a.py") for asked in server.prompts if name in asked} == {
        "prices.csv", "guide.md", "a.py",
    }  # fmt: skip


def test_the_words() -> None:
    request = built_in_prompt().render("src/a.py", "x = {{ 1 }}", 3)
    assert "Write 3 questions" in request and "src/a.py" in request and "x = {{ 1 }}" in request
    answer = 'Here you are:\n- Where?\n2) **Why is it?**\n"How?"\n3. not a question.'
    assert questions_in(answer) == ["Where?", "Why is it?", "How?"]
