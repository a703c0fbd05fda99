"""The client of chat models against a real chat-completions server on this machine."""

import json
import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from reflectrl.core.advice import install
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import without_thinking
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Budget, Journal
from tests.serving.endpoints.scripted import completion, drop, truncate

KEY = "sk-secret-of-the-test"
PROMPT = "a state that nobody else may read"


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def endpoint(server, journal=None, **settings) -> Endpoint:
    settings = {"key_env": "TEST_KEY", "timeout": 5, "retries": 2, **settings}
    return Endpoint(EndpointConfig(server.url, "small-model", **settings), journal)


def ask(endpoint: Endpoint, prompt: str = PROMPT) -> str:
    return endpoint.complete([{"role": "user", "content": prompt}], max_tokens=7, temperature=0.5)


# ---- the client ----------------------------------------------------------------------------------------------------


def test_sends_the_conversation_and_returns_the_answer(server):
    server.script("good day")
    assert ask(endpoint(server)) == "good day"
    expected = {"model": "small-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 7}
    assert server.requests == [{**expected, "temperature": 0.5, "stream": False}]
    assert server.keys == [f"Bearer {KEY}"]


def test_a_key_in_the_environment_stays_there(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-somebody-else")
    ask(endpoint(server, key_env=""))
    assert "sk-for-somebody-else" not in server.keys[0]


def test_spaces_around_a_key_are_none_of_it_and_what_no_header_holds_is_no_key(server, monkeypatch):
    monkeypatch.setenv("TEST_KEY", f" {KEY}\n")
    ask(endpoint(server))
    assert server.keys == [f"Bearer {KEY}"]
    monkeypatch.setenv("TEST_KEY", "sk-für\nuns")
    with pytest.raises(UserError, match="not printable ASCII") as caught:
        endpoint(server)
    assert "für" not in str(caught.value)


def test_a_model_that_says_nothing_is_an_empty_answer(server):
    server.script(None)
    assert ask(endpoint(server)) == ""


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_tried_again(server, status):
    server.script((status, b'{"error": {"message": "busy"}}'), "well now")
    assert ask(endpoint(server)) == "well now"
    assert len(server.requests) == 2


def refusal(endpoint: Endpoint) -> str:
    with pytest.raises(UserError) as caught:
        ask(endpoint)
    assert "\n" not in str(caught.value) and endpoint.config.base_url in str(caught.value)
    return str(caught.value)


def test_a_server_that_stays_broken_is_given_up_after_the_retries(server):
    server.reply = lambda request: (500, b'{"error": {"message": "out of\\nmemory"}}')
    assert "500" in refusal(endpoint(server))
    assert len(server.requests) == 3


def test_a_refused_key_is_reported_at_once_and_never_shown(server):
    server.reply = lambda request: (401, json.dumps({"error": {"message": f"bad key {KEY}"}}).encode())
    message = refusal(endpoint(server))
    assert "401" in message and "bad key" in message and KEY not in message
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, b'{"choices": [{"mess'), "cannot be read"),
        ((200, b"\xff\xfe\x00"), "cannot be read"),
        ((200, b"<html>hi</html>", "text/html"), "not a chat completion"),
        ((200, b'{"object": "list"}'), "not a chat completion"),
        ((200, b'{"choices": []}'), "not a chat completion"),
        ((200, b"[]"), "not a chat completion"),
        ((200, b'"3"'), "not a chat completion"),
        ((200, b'{"choices": [{"message": {"content": 3}}]}'), "not text"),
    ],
)
def test_an_answer_that_is_no_completion_is_one_clear_line(server, reply, words):
    server.reply = lambda request: reply
    assert words in refusal(endpoint(server, retries=0))


def test_a_wrong_path_is_one_clear_line(server):
    server.url = server.url.removesuffix("/v1")
    assert "404" in refusal(endpoint(server))


def test_a_server_that_never_answers_times_out(server):
    waiting = threading.Event()
    server.reply = lambda request: waiting.wait(5) and "late"
    began = time.monotonic()
    message = refusal(endpoint(server, timeout=0.2, retries=0))
    waiting.set()
    assert "no answer within 0.2 s" in message and time.monotonic() - began < 3


def test_nobody_at_the_address(server):
    with socket.socket() as free:  # bound but not listening, so the port answers nothing
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        assert "cannot connect" in refusal(Endpoint(EndpointConfig(url, "small-model", retries=0)))


def test_an_address_needs_its_scheme():
    with pytest.raises(UserError, match="'base_url' must begin with http://"):
        Endpoint(EndpointConfig("localhost:8000/v1", "m"))


def test_a_missing_client_library_is_explained():
    """In a fresh interpreter in which `openai` cannot be imported."""
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from reflectrl.serving.endpoints.client import Endpoint, EndpointConfig, UserError\n"
        "try: Endpoint(EndpointConfig('http://127.0.0.1/v1', 'm'))\n"
        "except UserError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == f"endpoints need the openai package; {install('endpoint')}\n"


def test_thinking_is_cut_out():
    assert without_thinking("<think>a\nb</think>\n\nc <think>d</think> e") == "c  e"
    assert without_thinking("so 1 it is</think>3") == "3"
    assert without_thinking("<think>surely 1") == ""


@pytest.mark.parametrize(
    "fault", [drop, truncate, b"{garbage", (200, b"[]")], ids=["drop", "truncate", "garbage", "wrong"]
)
def test_what_goes_wrong_on_the_way_is_tried_again(server, fault):
    server.script(fault, fault, "at last")
    assert ask(endpoint(server)) == "at last"


def test_whatever_goes_wrong_there_are_so_many_attempts_in_all(server):
    faults = [(500, b"{}"), b"{garbage", (429, b"{}"), b"[]", drop, b"{garbage", (500, b"{}")]
    server.script(*faults, "too late")
    refusal(endpoint(server, retries=3))
    assert len(server.requests) == 4


def test_a_connection_that_breaks_is_told_from_none(server):
    server.reply = lambda request: drop
    assert "the connection broke" in refusal(endpoint(server, retries=0))


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_an_answer_of_ten_megabytes_is_refused_once(server):
    server.reply = lambda request: (200, completion("a" * 10_000_000))
    assert "larger than answer_kib = 4096" in refusal(endpoint(server))
    assert len(server.requests) == 1


@pytest.mark.parametrize("slow", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-"], ids=["body", "headers"])
def test_an_answer_that_never_ends_is_given_up(server, slow):
    def drip(handler):
        handler.wfile.write(slow)
        for _ in range(200):
            handler.wfile.write(b"a")
            handler.wfile.flush()
            time.sleep(0.02)

    server.reply = lambda request: drip
    began = time.monotonic()
    assert "no answer within 0.3 s" in refusal(endpoint(server, timeout=0.3, retries=0))
    assert time.monotonic() - began < 2


def test_no_more_is_under_way_than_allowed(server):
    now, most, lock = 0, 0, threading.Lock()

    def reply(request):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return request["messages"][0]["content"]

    server.reply = reply
    asks = [Ask([{"role": "user", "content": str(i)}], 5) for i in range(20)]
    assert endpoint(server, concurrency=3).complete_all(asks) == [str(i) for i in range(20)]
    assert 2 <= most <= 3


def test_a_redirection_is_not_followed(server):
    def redirect(handler):
        handler.send_response(307)
        handler.send_header("Location", "http://127.0.0.1:9/v1/chat/completions")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.reply = lambda request: redirect
    assert "error 307" in refusal(endpoint(server, retries=0))


def test_azure_is_spoken_to_in_its_own_way(server):
    azure = EndpointConfig(f"{server.url}/", "deployed", "TEST_KEY", api="azure", api_version="2024-10-21")
    assert ask(Endpoint(azure)) == "1"
    assert server.paths == ["/v1/openai/deployments/deployed/chat/completions?api-version=2024-10-21"]
    assert server.headers[0]["api-key"] == KEY and "Authorization" not in server.headers[0]


def test_newer_models_get_newer_parameters(server):
    ask(endpoint(server, newer_parameters=True))
    assert server.requests[0]["max_completion_tokens"] == 7
    assert not {"temperature", "max_tokens"} & set(server.requests[0])


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_nothing_is_asked_twice_and_everything_that_matters_is_told_apart(server, tmp_path):
    path = tmp_path / "journal.jsonl"
    question = [{"role": "user", "content": PROMPT}]
    asks = [Ask(question, 7), Ask(question, 8), Ask(question, 7, 0.5), Ask(question, 7, 0.0, 1), Ask(question, 7)]
    endpoint(server, Journal(path)).complete_all(asks)
    assert len(server.requests) == 4
    again = endpoint(server, Journal(path))
    assert again.complete_all(asks) == ["1"] * 5 and (again.asked, again.known) == (5, 5)
    assert len(server.requests) == 4
    assert PROMPT not in path.read_text() and KEY not in path.read_text()
    Endpoint(EndpointConfig(server.url, "another-model"), Journal(path)).complete_all(asks)
    assert len(server.requests) == 8


def test_a_line_that_a_kill_cut_off_or_a_disk_damaged_is_asked_again(server, tmp_path):
    path = tmp_path / "journal.jsonl"
    asks = [Ask([{"role": "user", "content": str(i)}], 5) for i in range(3)]
    endpoint(server, Journal(path), concurrency=1).complete_all(asks)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    for _ in range(2):
        assert endpoint(server, Journal(path)).complete_all(asks) == ["1"] * 3
    assert len(server.requests) == 4
    path.write_bytes(path.read_bytes().replace(b'"answer": "1"', b'"answer": "2"', 1))
    assert endpoint(server, Journal(path)).complete_all(asks) == ["1"] * 3
    assert len(server.requests) == 5


def test_what_was_answered_before_a_failure_is_kept(server, tmp_path):
    server.reply = lambda request: "fine" if request["messages"][0]["content"] != "3" else (400, b"{}")
    asks = [Ask([{"role": "user", "content": str(i)}], 5) for i in range(4)]
    with pytest.raises(UserError, match="error 400"):
        endpoint(server, Journal(tmp_path / "j"), concurrency=1).complete_all(asks)
    server.reply = lambda request: "now"
    assert endpoint(server, Journal(tmp_path / "j")).complete_all(asks) == ["fine"] * 3 + ["now"]


REFUSALS = [
    (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"),
    (400, "prompt is too long: 201234 tokens > 200000 maximum"),
    (400, "the request exceeds the available context size. try increasing the context size"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"),
    (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
    (400, "Range of input length should be [1, 6000]"),
    (413, "Request too large for model `m`"),
    (400, "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."),
    (400, "Input data may contain inappropriate content."),
    (400, "The request was rejected because it was considered high risk"),
    (403, "Content violates usage guidelines."),
    (403, "openai/gpt requires moderation. Your input was flagged for harassment."),
    (400, "系统检测到输入或生成内容可能包含不安全或敏感内容"),
    (451, "no"),
]


@pytest.mark.parametrize(("status", "complaint"), REFUSALS)
def test_a_refused_question_is_an_answer_that_is_kept(server, tmp_path, status, complaint):
    body = json.dumps({"error": {"message": complaint}}).encode()
    server.reply = lambda request: (status, body)
    journal = Journal(tmp_path / "j")
    assert ask(endpoint(server, journal)).ending == "refused"
    assert (journal.spent.requests, journal.spent.tokens_out) == (1, 0)
    assert ask(endpoint(server, Journal(tmp_path / "j"))).ending == "refused" and len(server.requests) == 1
    with pytest.raises(UserError, match='with refused = "lost" or "unread", the others go on'):
        ask(endpoint(server, Journal(tmp_path / "j"), refused="stop"))
    server.reply = lambda request: "now"
    assert ask(endpoint(server, Journal(tmp_path / "j"), refused="stop")) == "now"
    assert ask(endpoint(server, Journal(tmp_path / "j"))) == "now"  # the later answer counts


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (401, "Incorrect API key provided"),
        (403, "You have no access to this model"),
        (404, "The model `m` does not exist"),
        (400, "max_tokens is too large: 5000. This model supports at most 4096 completion tokens"),
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        (429, "Rate limit reached: requested tokens exceed the limit of tokens per minute"),
        (500, "CUDA out of memory"),
    ],
)
def test_what_all_questions_would_meet_is_an_error(server, status, complaint):
    server.reply = lambda request: (status, json.dumps({"error": {"message": complaint}}).encode())
    assert complaint[:20] in refusal(endpoint(server, retries=0))


def test_a_complaint_of_any_words_is_a_refusal_if_other_questions_are_answered(server):
    def reply(request):
        no = (400, b'{"error": {"message": "I do not like this"}}')
        return no if request["messages"][0]["content"] == "3" else "fine"

    server.reply = reply
    asks = [Ask([{"role": "user", "content": str(i)}], 5) for i in range(5)]
    asking = endpoint(server, concurrency=1)
    assert [answer.ending for answer in asking.complete_all(asks[::-1])] == ["", "refused", "", "", ""]
    assert asking.endings == {"refused": 1}
    assert "I do not like" in refusal_of_one(endpoint(server), asks[3])


def refusal_of_one(endpoint, ask):
    with pytest.raises(UserError) as caught:
        endpoint.complete_all([ask])
    return str(caught.value)


def test_a_server_that_refuses_everything_is_asked_little(server):
    server.reply = lambda request: (400, b'{"error": {"message": "no"}}')
    asks = [Ask([{"role": "user", "content": str(i)}], 5) for i in range(100)]
    with pytest.raises(UserError, match="error 400: no"):
        endpoint(server, concurrency=4).complete_all(asks)
    assert len(server.requests) < 12


def test_a_journal_of_an_earlier_version_is_read(server, tmp_path):
    path = tmp_path / "j"
    ask(endpoint(server, Journal(path)))
    assert '"ending"' not in path.read_text()  # a complete answer is written as it always was
    assert ask(endpoint(server, Journal(path))).ending == "" and len(server.requests) == 1


# ---- what it costs ---------------------------------------------------------------------------------------------------


def test_tokens_and_money_are_counted_as_the_server_counts_them(server):
    server.reply = lambda request: completion("yes", (1000, 500))
    journal = Journal()
    ask(endpoint(server, journal, price_in=2.0, price_out=4.0))
    assert (journal.spent.requests, journal.spent.tokens_in, journal.spent.tokens_out) == (1, 1000, 500)
    assert journal.spent.money == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("budget", "answered", "words"),
    [(Budget(requests=4), 4, "max_requests = 4"), (Budget(tokens=1000), 5, "max_total_tokens = 1000"),
     (Budget(money=0.0006), 2, "max_cost = 0.0006")],
)  # fmt: skip
def test_the_budget_is_never_exceeded_and_what_was_paid_for_is_kept(server, tmp_path, budget, answered, words):
    server.reply = lambda request: completion("yes", (50, 100))
    asks = [Ask([{"role": "user", "content": f"{i:100}"}], 100) for i in range(20)]
    settings = {"price_in": 1.0, "price_out": 1.5}
    with pytest.raises(UserError, match=rf"the budget is spent \({words}\)"):
        endpoint(server, Journal(tmp_path / "j", budget), **settings).complete_all(asks)
    assert len(server.requests) == answered
    kept = Journal(tmp_path / "j", budget)
    assert len(kept) == answered and not budget.exceeded_by(kept.spent)
    asking = endpoint(server, kept, **settings)
    known = [one for one in asks if kept.answer(asking.key(one)) is not None]  # which ones came first is chance
    assert asking.complete_all(known) == ["yes"] * answered
    assert len(server.requests) == answered


def test_retries_count_and_a_request_without_an_end_counts_with_the_most_it_can_have_cost(server, tmp_path):
    server.script((500, b"{}"), drop, completion("yes", (3, 2)))
    journal = Journal(tmp_path / "j")
    ask(endpoint(server, journal))
    assert journal.spent.requests == 3
    assert journal.spent.tokens_out == 7 + 2  # the dropped one may have been answered in full
    assert Journal(tmp_path / "j").spent == journal.spent


@pytest.mark.parametrize(("status", "most"), [(502, 7), (504, 7), (429, 0), (500, 0)])
def test_what_a_gateway_gave_up_may_have_been_computed(server, status, most):
    server.reply = lambda request: (status, b"{}")
    journal = Journal()
    refusal(endpoint(server, journal, retries=0))
    assert (journal.spent.requests, journal.spent.tokens_out) == (1, most)


def test_the_estimate_is_about_what_is_not_known_yet(server):
    asking = endpoint(server, price_out=10.0)
    asks = [Ask([{"role": "user", "content": "a" * 400}], 50), Ask([{"role": "user", "content": "b" * 400}], 50)]
    estimate = asking.estimate(asks)
    assert (estimate.requests, estimate.tokens_in, estimate.tokens_out) == (2, 200, 100)
    assert estimate.money == pytest.approx(0.001)
    asking.complete_all(asks[:1])
    assert asking.estimate(asks).requests == 1


# ---- what nobody else may see ----------------------------------------------------------------------------------------


def test_neither_key_nor_prompt_is_logged_or_repeated(server, caplog):
    caplog.set_level(logging.DEBUG)
    server.reply = lambda request: (422, json.dumps({"error": {"message": f"bad input {PROMPT}, key {KEY}"}}).encode())
    message = refusal(endpoint(server))
    assert "error 422" in message
    for text in (message, caplog.text):
        assert KEY not in text and PROMPT not in text


@pytest.mark.parametrize(
    "settings",
    [{"base_url": "https://me:hunter2@host/v1"}, {"base_url": "https://host/v1?api-key=hunter2"},
     {"base_url": "http://[::1/hunter2"}, {"base_url": "http://a hunter2/v1"}, {"base_url": "http://:1/hunter2"},
     {"base_url": "http://host:99999/hunter2"}, {"key_env": "hunter2abcdef0123456789"},
     {"key_env": "sk-hunter2"}, {"api": "azure"}, {"max_cost": 1.0}],
)  # fmt: skip
def test_settings_that_cannot_be_are_one_line_without_secrets(settings):
    with pytest.raises(UserError) as caught:
        Endpoint(EndpointConfig(**{"base_url": "http://127.0.0.1/v1", "model": "m", **settings}))
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
