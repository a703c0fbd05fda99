"""Endpoint players and their client against a real chat-completions server on this machine."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from reflectrl.envs.base import Outcome, TextEnv
from reflectrl.models.endpoint import Endpoint
from reflectrl.players.base import LiveEpisode
from reflectrl.players.endpoint import EndpointPlayer, EndpointReflector
from reflectrl.prompts.chat import act_request, read_choice, without_thinking
from reflectrl.types import Observation, Task, Turn, UserError

KEY = "sk-secret-of-the-test"


def completion(text: str | None) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return json.dumps(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    ).encode()


class ChatServer(ThreadingHTTPServer):
    """Answers each request with `reply(request)`: text, or (status, body), or (status, body, content type)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = lambda request: "1"
        self.requests: list[dict] = []
        self.keys: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):  # a client that gave up is no news
        pass

    def script(self, *replies) -> None:
        """Answer the requests with these, one after the other."""
        left = list(replies)
        self.reply = lambda request: left.pop(0)


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.keys.append(self.headers["Authorization"])
        reply = (
            self.server.reply(request) if self.path == "/v1/chat/completions" else (404, b'{"error": "no such path"}')
        )
        status, body, *kind = (200, completion(reply)) if isinstance(reply, str | None) else reply
        self.send_response(status)
        self.send_header("Content-Type", *(kind or ["application/json"]))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("retry-after-ms", "1")  # so that retries do not slow the tests down
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ChatServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def endpoint(server, **settings) -> Endpoint:
    return Endpoint(server.url, "small-model", **{"api_key": KEY, "timeout": 5, "max_retries": 2, **settings})


def ask(endpoint: Endpoint) -> str:
    return endpoint.complete([{"role": "user", "content": "hello"}], max_tokens=7, temperature=0.5)


# ---- the client ----------------------------------------------------------------------------------------------------


def test_sends_the_conversation_and_returns_the_answer(server):
    server.script("good day")
    assert ask(endpoint(server)) == "good day"
    expected = {"model": "small-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}
    assert server.requests == [{**expected, "temperature": 0.5}]
    assert server.keys == [f"Bearer {KEY}"]


def test_a_key_in_the_environment_stays_there(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-somebody-else")
    ask(endpoint(server, api_key=""))
    assert "sk-for-somebody-else" not in server.keys[0]


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
    assert "\n" not in str(caught.value) and endpoint.base_url in str(caught.value)
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
    assert words in refusal(endpoint(server, max_retries=0))


def test_a_wrong_path_is_one_clear_line(server):
    server.url = server.url.removesuffix("/v1")
    assert "404" in refusal(endpoint(server))


def test_a_server_that_never_answers_times_out(server):
    waiting = threading.Event()
    server.reply = lambda request: waiting.wait(5) and "late"
    began = time.monotonic()
    message = refusal(endpoint(server, timeout=0.2, max_retries=0))
    waiting.set()
    assert "no answer within 0.2 s" in message and time.monotonic() - began < 3


def test_nobody_at_the_address(server):
    with socket.socket() as free:  # bound but not listening, so the port answers nothing
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        assert "cannot connect" in refusal(Endpoint(url, "small-model", max_retries=0))


def test_an_address_needs_its_scheme():
    with pytest.raises(UserError, match="'localhost:8000/v1': the address must begin with http://"):
        Endpoint("localhost:8000/v1", "m")


def test_a_missing_client_library_is_explained():
    """In a fresh interpreter in which `openai` cannot be imported."""
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from reflectrl.models.endpoint import Endpoint, UserError\n"
        "try: Endpoint('http://127.0.0.1/v1', 'm')\n"
        "except UserError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "endpoints need the openai package: pip install reflectrl[endpoint]\n"


# ---- reading answers -----------------------------------------------------------------------------------------------

DOORS = ("north", "south", "cd 12", "2")


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("3", 2),
        (" 3.\n", 2),
        ("**3**", 2),
        ("2: south, because 1 is a wall", 1),
        ("Choice: 4", 3),
        ("There are 2 walls and 3 doors.\nChoice: 1", 0),
        ("I would take number 2", 1),
        ("<think>1 or 2? 2.</think>\n4", 3),
        ("so 1 it is</think>3", 2),
        ("south", 1),
        ("cd 12", 2),
        ("2", 1),  # a label before an action that happens to be a number
        ("1, yes, 1", 0),
        ("0", None),
        ("5", None),
        ("-1", None),
        ("1.5", None),
        ("1 or 2", None),
        ("see file2 or 3rd", None),
        ("", None),
        ("<think>surely 1", None),
        ("no idea", None),
        ("Choice: 1 ... no, Choice: 2", None),
    ],
)
def test_read_choice(answer, index):
    assert read_choice(answer, DOORS) == index


def test_every_label_of_a_long_list_is_read_back():
    actions = [f"go {i}" for i in range(150)]
    assert [read_choice(str(i + 1), actions) for i in range(150)] == list(range(150))
    assert [read_choice(action, actions) for action in actions] == list(range(150))


def test_thinking_is_cut_out():
    assert without_thinking("<think>a\nb</think>\n\nc <think>d</think> e") == "c  e"


# ---- the players ---------------------------------------------------------------------------------------------------


class Corridor(TextEnv):
    """Walk east until the door."""

    def __init__(self, length: int = 4):
        super().__init__(horizon=100)
        self.length, self.place = length, 0

    def tasks(self, split, stage=None):
        return [Task("corridor", "corridor")]

    def begin(self, task):
        self.place = 0

    def apply(self, action):
        self.place += {"west": -1, "east": 1, "wait": 0}[action]
        won = self.place == self.length
        return Outcome(float(won), terminated=won, success=won)

    def history(self):
        return "The door is in the east.\n"

    def state(self):
        return f"You stand at {self.place}.\n"

    def legal_actions(self):
        return ("west", "east", "wait") if self.place else ("east", "wait")

    def get_state(self):
        return self.place

    def set_state(self, state):
        self.place = state


def episodes(count: int) -> list[LiveEpisode]:
    """Seats in corridors, the i-th of them i steps further on."""
    made = []
    for i in range(count):
        env = Corridor(length=count + 5)
        env.reset(seed=i)
        for _ in range(i):
            env.step(env.legal_actions().index("east"))
        made.append(LiveEpisode(env, env.task, i, np.random.default_rng(i), env.observe()))
    return made


def eastward(request: dict) -> str:
    """A model that finds the number of "east" in the request."""
    return re.search(r"^(\d+): east$", request["messages"][-1]["content"], re.MULTILINE).group(1)


def test_the_request_shows_rules_observation_reflection_and_numbered_actions():
    text = act_request(Observation("a\n", "b\n", ("east", "wait")), "the door is near", "Never go west.")
    for part in ("Never go west.", "a\nb\n", "Reflection: the door is near", "\n1: east\n2: wait\n"):
        assert part in text
    assert "Reflection" not in act_request(Observation("a\n", "b\n", ("east",)), None)


def test_plays_an_episode_to_the_end(server):
    server.reply = eastward
    player, (episode,) = EndpointPlayer(endpoint(server)), episodes(1)
    while not episode.env.done:
        (turn,) = player.turns([episode])
        assert turn.text == "east" and turn.player == "endpoint"
        episode.env.step(turn.choice)
        episode.observation = episode.env.observe()
    assert episode.env.success and player.asked == 6 and player.unreadable == 0


def test_many_seats_get_their_own_answers_in_their_order(server):
    def slow_at_first(request):
        time.sleep(0.1 if "stand at 0" in request["messages"][0]["content"] else 0)
        return eastward(request)

    server.reply = slow_at_first
    turns = EndpointPlayer(endpoint(server), workers=4).turns(episodes(12))
    assert [turn.choice for turn in turns] == [0] + [1] * 11


def test_reads_the_reflection_that_was_written_before(server):
    (episode,) = episodes(1)
    episode.turns.append(Turn("reflector", "Walk to the door."))
    EndpointPlayer(endpoint(server), instructions="Mind the gap.").turns([episode])
    request = server.requests[0]["messages"][0]["content"]
    assert "Reflection: Walk to the door." in request and "Mind the gap." in request


def test_an_unreadable_answer_is_asked_for_once_more(server):
    server.script("hm", "2")
    player = EndpointPlayer(endpoint(server))
    (turn,) = player.turns(episodes(1))
    assert (turn.choice, turn.text, player.unreadable) == (1, "wait", 0)
    assert [message["role"] for message in server.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert server.requests[1]["messages"][1]["content"] == "hm"
    assert "from 1 to 2" in server.requests[1]["messages"][2]["content"]


def test_two_unreadable_answers_draw_a_legal_action_and_are_counted(server):
    server.reply = lambda request: ""
    player = EndpointPlayer(endpoint(server))
    turns = [player.turns(episodes(20)) for _ in range(2)]
    assert player.asked == 40 and player.unreadable == 40 and len(server.requests) == 80
    choices = [turn.choice for turn in turns[0]]
    assert set(choices) == {0, 1, 2} and turns[0][3].probs == (1 / 3,) * 3
    assert choices == [turn.choice for turn in turns[1]]  # drawn from the episodes' own generators


def test_a_failing_server_is_one_clear_line_from_the_player_too(server):
    server.reply = lambda request: (404, b'{"error": {"message": "no model small-model"}}')
    with pytest.raises(UserError, match="no model small-model"):
        EndpointPlayer(endpoint(server)).turns(episodes(3))


def test_the_reflector_writes_one_line_and_no_thoughts(server):
    server.script("<think>hm\n</think>\nThe step helped.\nGo on  east.")
    (turn,) = EndpointReflector(endpoint(server), max_new_tokens=55).turns(episodes(1))
    assert turn.text == "The step helped. Go on east." and turn.choice is None
    assert server.requests[0]["max_tokens"] == 55 and "east; wait" in server.requests[0]["messages"][0]["content"]
