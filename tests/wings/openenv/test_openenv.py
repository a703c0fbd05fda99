"""Playing an environment that a real OpenEnv server on this machine hosts."""

import importlib.util
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.openenv.env import OpenEnvEnv

needs_package = pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason="the extra openenv")
pytestmark = pytest.mark.filterwarnings("default")  # of fastapi, websockets and others, when they are imported


@pytest.fixture(scope="module")
def url():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("served.py")), str(port)])
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, "the server died"
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


@needs_package
def test_a_served_environment_is_played_to_its_end(url):
    env = OpenEnvEnv(url, field="number", listed="left", text=("hint",), horizon=10)
    task = env.tasks("test")[3]
    text, info = env.reset(options={"task": task})
    assert text == "guess\n" and info["actions"] == [str(n) for n in range(10)]
    text, reward, over, _, info = env.step(9)
    assert (text, reward, over) == ("lower\n", -0.1, False) and "9" not in info["actions"]
    text, reward, over, _, info = env.step(3)
    assert (text, reward, over, info["success"]) == ("found\n", 1.0, True, True)
    env.close()


@needs_package
def test_a_limit_of_the_server_is_no_end(url):
    for field, flags in (("truncated", (False, True)), ("limit", (True, False))):
        env = OpenEnvEnv(url, ["0"], field="number", text=("hint",), horizon=10, truncated=field)
        env.reset(options={"task": env.tasks("test")[3]})
        steps = [env.step(0) for _ in range(6)]
        assert steps[-1][2:4] == flags and env.success == (field == "limit")
        env.close()


@needs_package
def test_every_promise_is_kept_and_a_copy_goes_on_where_the_first_was(url):
    env = OpenEnvEnv(url, ["4", "5"], field="number", horizon=5, train=20, validation=5, test=5)
    assert check_text_env(env) == []
    env.reset(options={"task": env.tasks("train")[7]})
    env.step(0)
    other = pickle.loads(pickle.dumps(env))  # noqa: S301
    assert other.observe() == env.observe() and "hint: higher" in other.render()
    assert other.step(1)[0] == env.step(1)[0]
    other.close()
    env.close()


@needs_package
def test_a_field_that_is_not_there_is_named(url):
    env = OpenEnvEnv(url, ["4"], field="number", text=("hnt",))
    with pytest.raises(UserError, match="no field 'hnt', but hint, left"):
        env.reset(options={"task": env.tasks("train")[0]})
    env.close()


@needs_package
def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="nothing answers at http://127.0.0.1:9"):
        OpenEnvEnv("http://127.0.0.1:9", ["up"])


def test_no_recipe_makes_it_talk_to_another_machine():
    with pytest.raises(UserError, match="not on this machine"):
        OpenEnvEnv("http://example.com:8000", ["up"])


def test_actions_have_to_come_from_somewhere():
    with pytest.raises(UserError, match="'actions'"):
        OpenEnvEnv()
