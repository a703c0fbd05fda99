"""What holds for every test: one thread for torch, and no connection that leaves this machine."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import reflectrl
from benchmarks.forks import Forks
from reflectrl.core.local_modules import FINDER
from tests import forked
from tests.machines import Machine
from tests.order import pytest_collection_modifyitems, pytest_xdist_make_scheduler

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# How long a machine takes to draw examples says nothing about the code, and on a busy one it fails a test.
settings.register_profile("suite", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

gc.disable()  # until everything is imported, see pytest_collection_finish
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores
if "REFLECTRL_DEVICE" not in os.environ:  # tests give the same results on a machine with a GPU (see tests/device.py)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
_SETTINGS = tempfile.TemporaryDirectory(prefix="reflectrl-settings-")
os.environ["XDG_CONFIG_HOME"] = _SETTINGS.name  # what fixtures of the whole session trust
STRANGER = str(Path(__file__).parent / "stranger")
"""An installed package with an environment, "corridor", as far as these tests and the processes they start can see."""
sys.path.append(STRANGER)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), STRANGER)))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells have it for what they start in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C would wait for ever


class NetworkBlocked(RuntimeError):
    """A test tried to reach another machine."""


def _is_here(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host)
    return host is None or text in ("", "localhost", "::1") or text.startswith("127.")


def _refuse_other_machines(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path is a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        raise NetworkBlocked(f"{event} to {host!r}: tests run without a network")


sys.addaudithook(_refuse_other_machines)  # cannot be taken back: it holds for the whole session


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test trusts is remembered for that test only, not among the settings of whoever runs it.

    pytest's own `mktemp` reads all folders of the session to number a new one: milliseconds, for thousands of tests.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", tempfile.mkdtemp(dir=_SETTINGS.name))


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over what is imported by now: a million objects, a quarter of a second each."""
    gc.collect()
    gc.freeze()
    gc.enable()


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def forks() -> Forks:
    """Server that starts programs at once: forks, in which all that a run imports is imported already."""
    return forked.forks()


@pytest.fixture
def command(tmp_path: Path, forks: Forks) -> Command:
    """`command("list", "envs")`: the command line in a process of its own, in an empty folder.

    With variables that Python itself reads, it is started anew.
    """

    def run(*words: str, env: Mapping[str, str] | None = None, input: str = "") -> subprocess.CompletedProcess[str]:
        program = ["-m", "reflectrl", *words]
        if not any(name.startswith("PYTHON") for name in env or ()):
            return forks.run(program, tmp_path, os.environ | (env or {}), input=input, timeout=120)
        return subprocess.run(
            [sys.executable, *program],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            input=input,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """An environment beside which commands are run."""
    from tests.command_line import PLUGIN

    path = tmp_path / "my_lamp.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@pytest.fixture
def lamp(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, importable in this process."""
    monkeypatch.syspath_prepend(plugin.parent)
    yield plugin
    sys.modules.pop("my_lamp", None)


@pytest.fixture(autouse=True)
def _forget_local_modules() -> Iterator[None]:
    """A module that a test has named in its folder is not found by later tests."""
    yield
    FINDER.named.clear()
    FINDER.imported.clear()


WITNESS = """
import os, sys

def witness(event, arguments):
    if event.startswith("socket."):
        with open(os.environ["SOCKET_LOG"], "a") as log:
            log.write(f"{event} {arguments}\\n")

sys.addaudithook(witness)
"""


@pytest.fixture
def witnessed(tmp_path: Path) -> dict[str, str]:
    """An environment in which every Python process writes down each socket that it opens."""
    folder = tmp_path / "witness"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITNESS, encoding="utf-8")
    paths = [str(folder), str(Path(reflectrl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SOCKET_LOG": str(tmp_path / "sockets.log")}


WORDS = (
    "|T: | : |\nDay one: went to see the sea.\nReflection: Go on.\nActions: 1: look; 2: north\nAction: look\nChoice: 1"
)
GROUPED = ("llama", "qwen2")
"""Of the tiny models, those in which two heads share their keys and values."""


def _save_tiny(folder: Path, family: Any) -> None:
    """Weights are enlarged, so that outputs differ between tokens and places."""
    import torch
    from transformers import AutoModelForCausalLM

    from reflectrl.core.config import ModelConfig
    from reflectrl.models.scratch import make_model, train_tokenizer

    tokenizer = train_tokenizer([WORDS], 300, choices=9)
    settings = ModelConfig(family=family, layers=2, width=32, heads=2, context=2048)
    model: Any = make_model(settings, tokenizer, seed=3)
    if family in GROUPED:
        model.config.num_key_value_heads = 1
        model = AutoModelForCausalLM.from_config(model.config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for weight in model.parameters():
            weight.normal_(std=0.12) if weight.ndim == 2 else weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_folder("llama")`: where a tiny model of that family lies."""
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            _save_tiny(folders[family], family)
        return folders[family]

    return folder_of


@pytest.fixture(scope="session")
def pair(tiny_folder: Callable[[str], Path]) -> Callable[..., tuple[Any, Any]]:
    """`pair("llama")`: a policy and a reflector, each with weights of its own; `pair("llama", True)`: two adapters.

    Their context is a part of the model's, so that prompts outgrow it soon; tests that need more may replace it.
    Models are loaded once, but each call returns new objects around their weights: what a test adds to one, such as a
    head that scores options, must not be there in the next test.
    """
    import torch

    from reflectrl.core.config import ModelConfig
    from reflectrl.models.load import load_model, second_player

    made: dict[tuple[str, bool], tuple[Any, Any]] = {}

    def make(family: str, adapters: bool) -> tuple[Any, Any]:
        settings = ModelConfig(context=320, mixed_precision="off", lora_rank=2 if adapters else 0)
        first = load_model(tiny_folder(family), settings, "policy")
        second = second_player(first, "reflector") if adapters else load_model(tiny_folder(family), settings)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(7)
            for weight in [*first.parameters(), *second.parameters()] if adapters else second.parameters():
                weight.normal_(std=0.12) if weight.ndim == 2 else None
        return first, second

    def pair_of(family: str, adapters: bool = False) -> tuple[Any, Any]:
        if (family, adapters) not in made:
            made[family, adapters] = make(family, adapters)
        policy, reflector = made[family, adapters]
        return replace(policy), replace(reflector)

    return pair_of


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium (`benchmarks.chromium.Browser`); tests that need one are skipped where there is none."""
    from benchmarks.chromium import NAMES, Browser, find_browser

    if find_browser() is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """`machine(AMD)`: let this process find another processor."""
    from reflectrl.models import processor
    from reflectrl.models.forward import turned_rows

    def change(cpuinfo: str | None) -> None:
        path = tmp_path / "cpuinfo"
        path.unlink(missing_ok=True)
        if cpuinfo is not None:
            path.write_text(cpuinfo, encoding="utf-8")
        monkeypatch.setattr(processor, "CPUINFO", path)
        processor.processor.cache_clear()
        turned_rows.cache_clear()

    yield change
    processor.processor.cache_clear()
    turned_rows.cache_clear()
