"""What strangers may send: recipes, git repositories, run folders and models that try to run code or to spend secrets.

Each table maps what is tried, in words, to what is sent. `tests/test_trust_drill.py` tries all of them.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "sk-top-secret-of-the-user"
"""What environment variables hold that nobody may send."""
VARIABLES = (
    "AWS_SECRET_ACCESS_KEY", "AZURE_OPENAI_AD_TOKEN", "AZURE_OPENAI_API_KEY", "GITHUB_TOKEN", "HF_TOKEN",
    "OPENAI_ADMIN_KEY", "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET",
    "WANDB_API_KEY",
)  # fmt: skip
"""Variables of which some client knows by itself."""

# ---- recipes ---------------------------------------------------------------------------------------------------------

CORRIDOR = 'env = {name = "corridor", train = 2, validation = 1, test = 1, horizon = 2}\neval.splits = ["test"]\n'
BIG = f'arms = ["random", "big"]\n{CORRIDOR}'
WORDED = f"env_workers = 1\n{CORRIDOR}"
TEXT = 'arms = ["data"]\ntext.task = "orders"\n'

CODE = {
    "the environment": 'env.name = "stranger:Mine"',
    "a function for the environment": 'env.name = "stranger:called"',
    "a module for the environment": 'env.name = "stranger:"',
    "an environment behind spaces": 'env.name = " stranger:Mine"',
    "an environment deep in its module": 'env.name = "stranger:Mine.begin"',
    "gymnasium's id": 'env = {name = "reflectrl.core.envs.adapter:GymTextEnv", id = "stranger:My-v0", actions = ["a"]}',
    "gymnasium's id with spaces": 'env = {name = "reflectrl.core.envs.adapter:GymTextEnv", id = "stranger:A b"}',
    "a level of BabyAI": 'env = {name = "babyai", level = "stranger:Mine"}',
    "a level of BabyAI with spaces": 'env = {name = "babyai", level = "stranger:Mine and more"}',
    "a game of TextArena": 'env = {name = "textarena", game = "stranger:Mine"}',
    "settings of a game": 'env = {name = "textarena", settings = {agent = "stranger:Mine"}}',
    "an argument in a list": 'env = {name = "corridor", opponents = ["stranger:Mine"]}',
    "an argument in a table in a list": 'env = {name = "corridor", opponents = [{player = "stranger:Mine"}]}',
    "the key of an argument": 'env = {name = "corridor", players = {"stranger:Mine" = 1}}',
    "an argument behind a line break": 'env = {name = "corridor", player = "\\nstranger:Mine"}',
    "a reward by its key": f'{TEXT}rewards."stranger:Stranger" = 1',
    "a reward by `use`": f'{TEXT}rewards.x.use = "stranger:Stranger"',
    "a reward's argument": f'{TEXT}rewards.fluency.model = "stranger:Stranger"',
    "a reward's nested argument": f'{TEXT}rewards.fluency.options = {{judge = ["stranger:Stranger"]}}',
    "a reward of the test by its key": f'{TEXT}test_rewards."stranger:Stranger".weight = 1',
    "a reward of the test by `use`": f'{TEXT}test_rewards.x.use = "stranger:Stranger"',
    "the engine of environment workers": f'engine = "stranger:Mine"\narms = ["random"]\n{WORDED}',
    "the engine of two processes": f'engine = "stranger:called"\nprocesses = 2\narms = ["random"]\n{CORRIDOR}',
    "the engine of one process": f'engine = "stranger:Stranger"\narms = ["random"]\n{CORRIDOR}',
    "a module for the engine": f'engine = "stranger:"\narms = ["random"]\n{CORRIDOR}',
    "an engine behind spaces": f'engine = " stranger:Mine"\narms = ["random"]\n{CORRIDOR}',
    "the model's own code": 'model = {source = "hers", trust_remote_code = true}',
    "the own code of a policy": 'model = {policy = "theirs/model", trust_remote_code = true}',
    "the own code of a reflector": 'model = {reflector = "theirs/model", trust_remote_code = true}',
}
"""Recipes that name code."""

KEY = 'key_env = "AWS_SECRET_ACCESS_KEY"'
SPENDING = {
    "a player's address": f'{BIG}[players.big]\nbase_url = "URL"\nmodel = "m"\n',
    "a player's address and key": f'{BIG}[players.big]\nbase_url = "URL"\nmodel = "m"\n{KEY}\n',
    "the address and key of a player with a dash": f'{BIG}[players.a-b]\nbase_url = "URL"\nmodel = "m"\n{KEY}\n',
    "a player of Azure": f'{BIG}[players.big]\nbase_url = "URL"\nmodel = "m"\napi = "azure"\n'
    f'api_version = "1"\n{KEY}\n',
    "a player who reasons": f'{BIG}[players.big]\nbase_url = "URL"\nmodel = "m"\nstyle = "reason"\n{KEY}\n',
    "a player in two turns": f'{BIG}[players.big]\nbase_url = "URL"\nmodel = "m"\nstyle = "react"\n{KEY}\n',
    "the shared address of players": f'{BIG}endpoint = {{base_url = "URL", model = "m"}}\n[players.big]\n',
    "the shared address and key": f'{BIG}endpoint = {{base_url = "URL", model = "m", {KEY}}}\n[players.big]\n',
    "a shared address, a player's key": f'{BIG}endpoint = {{base_url = "URL", model = "m"}}\nplayers.big.{KEY}\n',
    "a player's address, the shared key": f'{BIG}endpoint.{KEY}\nplayers.big = {{base_url = "URL", model = "m"}}\n',
    "a teacher who walks": f'arms = ["sft"]\n{CORRIDOR}teach.by = "endpoint"\n'
    f'endpoint = {{base_url = "URL", model = "m", {KEY}}}\n',
    "a teacher who explains": f'arms = ["sft"]\n{CORRIDOR}teach.by = "endpoint"\nteacher.ask = "explain"\n'
    f'endpoint = {{base_url = "URL", model = "m", {KEY}}}\n',
    "rounds of questions to a teacher": f'arms = ["dagger"]\n{CORRIDOR}teach.by = "endpoint"\n'
    f'endpoint = {{base_url = "URL", model = "m", {KEY}}}\n',
    "a judge of episodes": f'arms = ["rl-only"]\n{CORRIDOR}rl = {{group = 2, episodes = 4}}\njudge.coef = 1.0\n'
    f'endpoint = {{base_url = "URL", model = "m", {KEY}}}\n',
    "a server of rollouts": f'arms = ["rl-only"]\n{CORRIDOR}rollouts.servers = ["URL"]\n',
    "a server of rollouts and its key": f'arms = ["rl-only"]\n{CORRIDOR}rollouts = {{servers = ["URL"], {KEY}}}\n',
    "two servers of rollouts": f'arms = ["rl-only"]\n{CORRIDOR}rollouts = {{servers = ["URL", "URL"], {KEY}}}\n',
    "a judge of texts": f'{TEXT}rewards.tournament = {{model = "m", base_url = "URL"}}\n',
    "a judge of texts and its key": f'{TEXT}rewards.tournament = {{model = "m", base_url = "URL", {KEY}}}\n',
    "a judge of test texts": f'{TEXT}test_rewards.tournament = {{model = "m", base_url = "URL", {KEY}}}\n',
    "a judge of texts by `use`": f'{TEXT}rewards.x = {{use = "tournament", model = "m", base_url = "URL", {KEY}}}\n',
    "a key alone, for an address that is typed": f'{BIG}endpoint = {{model = "m", {KEY}}}\n[players.big]\n',
    "an environment elsewhere": 'env = {name = "corridor", address = "http://example.org/v1"}',
    "an environment elsewhere, in a table": 'env = {name = "corridor", server = {at = ["ws://example.org"]}}',
    "an environment whose address reads as here": 'env = {name = "corridor", url = "http://127.0.0.1\\\\@example.org"}',
    "an environment that wants a variable": 'env = {name = "corridor", token_env = "HF_TOKEN"}',
    "an account for metrics: wandb": f'arms = ["rl-only"]\n{CORRIDOR}watch.trackers = ["wandb"]\n',
    "an account for metrics: mlflow": f'arms = ["rl-only"]\n{CORRIDOR}watch.trackers = ["mlflow"]\n',
    "an account for metrics: trackio": f'arms = ["rl-only"]\n{CORRIDOR}watch.trackers = ["tensorboard", "trackio"]\n',
}
"""Recipes that name addresses (URL stands for that of a server here), secrets and accounts."""

# ---- git -------------------------------------------------------------------------------------------------------------

RUN = "sh -c 'touch MARK; cat'"
CONFIG = {
    "the program of signatures": "[log]\nshowSignature = true\n[gpg]\nprogram = MARKER",
    "the program of signatures in another format": "[log]\nshowSignature = true\n[gpg]\nformat = ssh\n"
    '[gpg "ssh"]\nprogram = MARKER\nallowedSignersFile = x',
    "a file system monitor": "[core]\nfsmonitor = MARKER",
    "a folder of hooks": "[core]\nhooksPath = HOOKS",
    "a pager": "[core]\npager = MARKER\n[pager]\nlog = MARKER\nls-tree = MARKER",
    "an editor": "[core]\neditor = MARKER\n[sequence]\neditor = MARKER",
    "an askpass program": "[core]\naskPass = MARKER",
    "a command for ssh": '[core]\nsshCommand = MARKER\n[remote "origin"]\nurl = ssh://example.org/a\npromisor = true\n'
    "[extensions]\npartialClone = origin",
    "a remote that is a program": '[remote "origin"]\nurl = ext::MARKER\npromisor = true\n[protocol "ext"]\n'
    "allow = always\n[extensions]\npartialClone = origin",
    "a proxy": '[core]\ngitProxy = MARKER\n[remote "origin"]\nurl = git://example.org/a\npromisor = true',
    "a program to send packs": '[remote "origin"]\nurl = /tmp\nuploadpack = MARKER\npromisor = true',
    "alternative references": "[core]\nalternateRefsCommand = MARKER",
    "an external diff": "[diff]\nexternal = MARKER\n[log]\ndiffMerges = on",
    "the diff of a kind of file": '[diff "evil"]\ncommand = MARKER',
    "text of a kind of file": '[diff "evil"]\ntextconv = MARKER',
    "a filter, smudge": f'[filter "evil"]\nsmudge = "{RUN}"',
    "a filter, clean": f'[filter "evil"]\nclean = "{RUN}"\nrequired = true',
    "a filter process": '[filter "evil"]\nprocess = MARKER\nrequired = true',
    "a merge driver": '[merge "evil"]\ndriver = MARKER',
    "an archive filter": '[tar "tar"]\ncommand = MARKER\n[tar "tar.gz"]\ncommand = MARKER',
    "an alias of log": "[alias]\nlog = !MARKER\nls-tree = !MARKER\ncat-file = !MARKER",
    "a helper for credentials": "[credential]\nhelper = !MARKER",
    "a trailer's command": '[trailer "sign"]\ncommand = MARKER\ncmd = MARKER',
    "a browser": '[web]\nbrowser = evil\n[browser "evil"]\ncmd = MARKER',
    "a difftool": '[difftool "evil"]\ncmd = MARKER\n[mergetool "evil"]\ncmd = MARKER',
    "another file, included": "[include]\npath = ../evil.config",
    "another file, included for this folder": '[includeIf "gitdir:**"]\npath = ../evil.config',
    "a configuration of the worktree": "[extensions]\nworktreeConfig = true",
    "another worktree": "[core]\nworktree = /\nbare = false",
    "attributes elsewhere": "[core]\nattributesFile = ../evil.attributes",
    "a submodule": '[submodule "evil"]\nactive = true\nurl = ext::MARKER\nupdate = !MARKER\n'
    "[submodule]\nrecurse = true\n"
    "[diff]\nsubmodule = log",
    "a background job": "[maintenance]\nauto = true\n[gc]\nauto = 1\nautoDetach = false\nrecentObjectsHook = MARKER",
    "a trace to a file": "[trace2]\nnormalTarget = MARK\neventTarget = MARK",
    "a setting that git does not know": "[core]\nrepositoryformatversion = 99",
    "no setting at all, but nonsense": "[core\nthis is no configuration",
}
"""Configurations of a repository. MARKER stands for a program that leaves MARK behind, HOOKS for a folder of hooks."""


def settings_of(text: str, marker: Path, mark: Path, hooks: Path) -> str:
    """A configuration, with the names of the files that are meant."""
    return text.replace("MARKER", str(marker)).replace("HOOKS", str(hooks)).replace("MARK", str(mark))


def _submodule_elsewhere(root: Path, secret: Path) -> None:
    shutil.move(root / ".git", root / ".moved")
    (root / ".git").write_text("gitdir: .moved\n")


def _another_repository(root: Path, secret: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / ".git").write_text(f"gitdir: {secret / '.git'}\n")


def _linked_repository(root: Path, secret: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / ".git").symlink_to(secret / ".git")


def _linked_objects(root: Path, secret: Path) -> None:
    shutil.rmtree(root / ".git/objects")
    (root / ".git/objects").symlink_to(secret / ".git/objects")
    _same_head(root, secret)


def _linked_folders_of_objects(root: Path, secret: Path) -> None:
    shutil.rmtree(root / ".git/objects")
    (root / ".git/objects").mkdir()
    for folder in (secret / ".git/objects").iterdir():
        (root / ".git/objects" / folder.name).symlink_to(folder)
    _same_head(root, secret)


def _borrowed_objects(root: Path, secret: Path) -> None:
    (root / ".git/objects/info").mkdir(exist_ok=True)
    (root / ".git/objects/info/alternates").write_text(f"{secret / '.git/objects'}\n")
    _same_head(root, secret)


def _common_folder(root: Path, secret: Path) -> None:
    (root / ".git/commondir").write_text(f"{secret / '.git'}\n")


def _head_elsewhere(root: Path, secret: Path) -> None:
    (root / ".git/HEAD").write_text(f"ref: refs/heads/../../../../{secret.name}/.git/HEAD\n")


def _head_is_an_option(root: Path, secret: Path) -> None:
    (root / ".git/HEAD").write_text(f"--output={root / 'MARK'}\n")


def _branch_is_an_option(root: Path, secret: Path) -> None:
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/refs/heads").mkdir(parents=True, exist_ok=True)
    (root / ".git/refs/heads/main").write_text(f"--output={root / 'MARK'}\n")


def _same_head(root: Path, secret: Path) -> None:
    """The stranger knows the commit that the other repository is at."""
    branch = (secret / ".git/HEAD").read_text().removeprefix("ref: ").strip()
    (root / ".git/HEAD").write_text((secret / ".git" / branch).read_text())


PLACES: dict[str, Callable[[Path, Path], None]] = {
    "a file that says the repository lies in the folder": _submodule_elsewhere,
    "a file that names another repository": _another_repository,
    "a link to another repository": _linked_repository,
    "a link to another repository's objects": _linked_objects,
    "links to the folders of another repository's objects": _linked_folders_of_objects,
    "objects borrowed from another repository": _borrowed_objects,
    "a common folder elsewhere": _common_folder,
    "a branch outside of the repository": _head_elsewhere,
    "an option in the place of a commit": _head_is_an_option,
    "an option in the place of a branch's commit": _branch_is_an_option,
}
"""Repositories (of the first folder) that want another one to be read (that of the second)."""

ENVIRONMENT = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_EXTERNAL_DIFF": "MARKER",
    "GIT_SSH_COMMAND": "MARKER",
    "GIT_PAGER": "MARKER",
    "GIT_ASKPASS": "MARKER",
    "GIT_TRACE": "MARK",
    "GIT_TRACE2": "MARK",
    "GIT_OBJECT_DIRECTORY": "/nowhere",
    "GIT_WORK_TREE": "/",
}
"""Variables that change what git does, and that may be set for the sake of another repository."""

# ---- models ----------------------------------------------------------------------------------------------------------

MODULE = 'from pathlib import Path\nPath("imported").touch()\nclass T: pass\nclass C: pass\nclass M: pass\n'


def change(path: Path, **values: Any) -> None:
    """Change keys of a file of JSON, which is made if it is not there."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(before | values))


class Opened:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("called"),)


def _pickled(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({"weight": Opened()}))


def _zipped(folder: Path, name: str = "pytorch_model.bin") -> None:
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({"weight": Opened()}, folder / name)


def _tokenizer_pickled(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps(Opened()))
    change(folder / "tokenizer_config.json", tokenizer_class="TransfoXLTokenizer")


OWN = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M", "AutoModel": "own.M"}
TEMPLATES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "builtins": "{{ cycler.__init__.__globals__.os.popen('touch called').read() }}",
    "its own context": "{{ self.__init__.__globals__.__builtins__.open('called', 'w') }}",
    "a function's globals": "{{ raise_exception.__globals__['os'].system('touch called') }}",
    "a filter": "{{ ''|attr('__class__')|attr('__base__') }}",
    "a file": "{% include '/etc/passwd' %}",
}
MODELS: dict[str, Callable[[Path], object]] = {
    "own code of a known kind": lambda folder: change(folder / "config.json", auto_map=OWN),
    "own code of an unknown kind": lambda folder: change(folder / "config.json", auto_map=OWN, model_type="own"),
    "own code of another repository": lambda folder: change(
        folder / "config.json", auto_map={name: f"evil/own--{place}" for name, place in OWN.items()}, model_type="own"
    ),
    "own code for generation": lambda folder: change(folder / "generation_config.json", custom_generate="evil/x"),
    "a folder of code for generation": lambda folder: (
        (folder / "custom_generate").mkdir() or (folder / "custom_generate/generate.py").write_text(MODULE)
    ),
    "own code of a tokenizer": lambda folder: change(
        folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", "own.T"]}, tokenizer_class="T"
    ),
    "a tokenizer of an unknown class": lambda folder: change(folder / "tokenizer_config.json", tokenizer_class="T"),
    "a tokenizer's own settings": lambda folder: change(folder / "tokenizer_config.json", trust_remote_code=True),
    "a tokenizer that is a pickle": _tokenizer_pickled,
    "settings that trust themselves": lambda folder: change(
        folder / "config.json", auto_map=OWN, model_type="own", trust_remote_code=True
    ),
    "a kernel": lambda folder: change(folder / "config.json", attn_implementation="evil/kernel"),
    "a kernel by its other name": lambda folder: change(folder / "config.json", _attn_implementation="evil/kernel:f"),
    "a kernel in a part": lambda folder: change(folder / "config.json", text_config={"attn_implementation": "e/k"}),
    "a kernel in a list": lambda folder: change(folder / "config.json", parts=[{"attn_implementation": "e/k"}]),
    "a kernel for quantisation": lambda folder: change(
        folder / "config.json", quantization_config={"quant_method": "stranger"}
    ),
    "weights that are a pickle": lambda folder: _pickled(folder, "pytorch_model.bin"),
    "weights that are a pickle in an archive": _zipped,
    "weights that are a pickle, in pieces": lambda folder: (
        _pickled(folder, "part.bin")
        or change(folder / "pytorch_model.bin.index.json", metadata={}, weight_map={"weight": "part.bin"})
    ),
    "a chat template that is a file": lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATES["builtins"]),
    **{
        f"a chat template that asks for {what}": lambda folder, text=text: change(
            folder / "tokenizer_config.json", chat_template=text
        )
        for what, text in TEMPLATES.items()
    },
}
"""What is changed in the folder of a model, beside which lies own.py."""

LORA = {"peft_type": "LORA", "r": 2, "target_modules": ["c_attn"], "task_type": "CAUSAL_LM"}
ADAPTERS: dict[str, dict[str, Any]] = {
    "a module of Megatron": LORA | {"megatron_config": {"x": 1}, "megatron_core": "stranger"},
    "a module of Megatron, without settings": LORA | {"megatron_core": "stranger"},
    "the module of its base": LORA
    | {"task_type": None, "auto_mapping": {"base_model_class": "X", "parent_library": "stranger"}},
    "a tokenizer with code": {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "prompt_tuning_init": "TEXT", "num_virtual_tokens": 2,
        "prompt_tuning_init_text": "hi", "tokenizer_name_or_path": "model",
        "tokenizer_kwargs": {"trust_remote_code": True},
    },
    "other adapters": {"peft_type": "XLORA", "adapters": {"a": "evil/adapter"}, "hidden_size": 16},
    "an unknown kind": LORA | {"peft_type": "stranger:Stranger"},
    "a base elsewhere": LORA | {"base_model_name_or_path": "evil/base"},
    "a revision of its base": LORA | {"revision": "stranger"},
}  # fmt: skip
"""Settings of adapters."""
