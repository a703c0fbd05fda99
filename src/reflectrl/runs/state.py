"""Fingerprints of artifacts, and the record of what a run folder already contains.

Each artifact is made from files and written to files. So a run can be interrupted anywhere, and the same command
continues it. An artifact is complete when its output exists and was made with the same fingerprint: a hash of the
settings it depends on, of its inputs' fingerprints, and of the environment's source. Nothing here needs torch or an
environment.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from reflectrl.core.advice import is_typed, option
from reflectrl.core.config import Recipe
from reflectrl.core.config.values import without_removed
from reflectrl.core.digests import digest_of
from reflectrl.core.json_lines import read_json
from reflectrl.core.source_code import environment_digest
from reflectrl.core.types import UserError
from reflectrl.runs.artifact import STAGES, Artifact, Graph

LOG = logging.getLogger(__name__)
SCHEMA = 2
"""Version of `state.json`. Fingerprints of version 1 are ignored, and the folder's recipe is compared instead."""
MOST_THREADS = 1024
"""Largest number of threads that a `state.json` may give."""
STATE = "state.json"
"""The file of a run folder that records complete stages and the fingerprints of its artifacts."""
CARD = "agent.json"
"""File that marks a folder as an exported agent's. A run folder has none."""
POLICY, REFLECTOR = "policy", "reflector"
"""Folders of an agent's models, beside its card. An agent without a reflector lacks the second."""


def fingerprint(artifact: Artifact, settings: Mapping[str, Any], environment: str | None = None) -> str:
    """Return a hash of everything on which an artifact depends: its settings that differ from the defaults, its inputs,
    and the source of the environment.

    Args:
        settings: the plain values of the whole recipe.
        environment: digest of the environment's source; None for the present one, "" for none, as in earlier versions.

    Raises:
        UserError: one of its files cannot be read.
    """
    settings = _deciding(settings)
    environment = source_of(settings) if environment is None else environment
    return _fingerprint(artifact, settings, environment, {})


def _fingerprint(artifact: Artifact, settings: Mapping[str, Any], environment: str, hashes: dict[str, str]) -> str:
    """Return the hash of an artifact, and note it in `hashes`, by key: artifacts share most of their inputs."""
    if artifact.key not in hashes:
        changed = {name: _changed(value_of(settings, name), value_of(defaults(), name)) for name in artifact.settings}
        inputs = [_fingerprint(needed, settings, environment, hashes) for needed in artifact.made_from]
        files = [digest_of(Path(name)) for name in artifact.files]
        if environment and needs_environment(artifact):
            files.append(f"environment {environment}")
        hashes[artifact.key] = _hash([artifact.kind, artifact.name, artifact.seed, changed, inputs, *files])
    return hashes[artifact.key]


def source_of(settings: Mapping[str, Any]) -> str:
    """Return the digest of the source of a recipe's environment; "" if there is none or it is part of reflectrl."""
    env = settings.get("env")
    return environment_digest(env) if isinstance(env, Mapping) else ""


def needs_environment(artifact: Artifact) -> bool:
    """Tell whether an artifact is made in the environment, or plays in it."""
    return any(name.partition(".")[0] == "env" for name in artifact.settings)


def extent(artifact: Artifact, settings: Mapping[str, Any]) -> str:
    """Return a hash of the settings that decide how much of an artifact is made."""
    return _hash([value_of(settings, name) for name in artifact.extent])


@cache
def defaults() -> Mapping[str, Any]:
    """Return the plain values of an empty recipe."""
    return Recipe().plain()


def _deciding(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings without keys that no longer exist; folders of earlier versions still hold them."""
    return {name: without_removed(value, f"{name}.") for name, value in settings.items()}


def _changed(value: Any, default: Any) -> Any:
    """Keep only values that differ from the defaults, so that a key which a later version adds invalidates nothing."""
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return {key: item for key, item in value.items() if json.dumps(item) != json.dumps(default.get(key))}
    return None if json.dumps(value) == json.dumps(default) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def value_of(settings: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a dotted key, or a whole section; None if there is no such key."""
    value: Any = settings
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def settings_of(artifact: Artifact) -> Iterator[str]:
    """Yield the recipe keys on which an artifact depends, beginning with its inputs' keys."""
    for needed in artifact.made_from:
        yield from settings_of(needed)
    yield from artifact.settings


def files_of(artifact: Artifact) -> Iterator[str]:
    """Yield the user's files on which an artifact depends, beginning with its inputs' files."""
    for needed in artifact.made_from:
        yield from files_of(needed)
    yield from artifact.files


@dataclass
class State:
    """The content of `state.json`.

    Attributes:
        complete: the complete stages. They are for people to read; a run checks the files themselves.
        made: key of an artifact → its "fingerprint" when it was begun, the digest of the "environment" in which it was
            begun, the "versions" of reflectrl that made it, and once it is complete, its "extent" and a digest of its
            "logs".
        tasks: the digest of the environment's tasks; "" if it is not known.
        auto_precision: what "auto" means in this run for `model.mixed_precision` and `model.mixed_play`, "on" or
            "off"; "" if it has not been decided.
        threads: number of threads that each process of this run computes with; 0 if it has not been decided.
    """

    path: Path
    complete: list[str] = field(default_factory=list)
    made: dict[str, dict[str, str]] = field(default_factory=dict)
    damaged: bool = False
    tasks: str = ""
    auto_precision: str = ""
    threads: int = 0

    @classmethod
    def read(cls, folder: Path) -> State:
        """Read the state of a run folder.

        It is empty if there is no file, and `damaged`, with a warning, if it is unreadable.
        """
        path = folder / STATE
        if not path.is_file():
            return cls(path)
        try:
            noted = read_json(path)
            intact = noted.pop("digest", None) in (None, _hash(noted))  # earlier versions wrote none
            done, records = list(noted["complete"]), dict(noted["artifacts"]) if noted.get("schema") == SCHEMA else {}
            precision = noted.get("auto_precision", "")  # earlier versions decided anew in each process
            threads = noted.get("threads", 0)
            intact = intact and precision in ("", "on", "off") and set(done) <= set(STAGES)
            intact = intact and type(threads) is int and 0 <= threads <= MOST_THREADS
            if intact and all("fingerprint" in record for record in records.values()):
                return cls(path, done, records, False, str(noted.get("tasks", "")), precision, threads)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        LOG.warning("reflectrl: %s is damaged; it is written anew from what the folder holds", path)
        return cls(path, damaged=True)

    def write(self) -> None:
        """Write the file atomically."""
        from reflectrl.learn.checkpoint import write_text  # brings torch, which a dry run does without

        stages = [stage for stage in STAGES if stage in self.complete]
        decided = {"auto_precision": self.auto_precision, "threads": self.threads}
        noted = {"schema": SCHEMA, "complete": stages, "tasks": self.tasks, **decided, "artifacts": self.made}
        write_text(self.path, json.dumps({**noted, "digest": _hash(noted)}, indent=1) + "\n")

    def begin(self, artifact: Artifact, settings: Mapping[str, Any], version: str = "") -> None:
        """Note that an artifact is being made or continued with these settings.

        Args:
            version: version of reflectrl that makes it; "" notes none.
        """
        before = self.made.get(artifact.key)
        versions = [version]
        if before is not None and artifact.is_begun(self.path.parent):
            versions = [*before.get("versions", EARLIER).split(", "), version]
        self.made[artifact.key] = _record(artifact, settings, ", ".join(dict.fromkeys(filter(None, versions))))

    def finish(self, artifact: Artifact, settings: Mapping[str, Any], version: str = "") -> None:
        """Note that an artifact is complete.

        Args:
            version: version of reflectrl that made it, if nothing was noted when it was begun; "" notes none.
        """
        versions = self.made.get(artifact.key, {"versions": version}).get("versions", "")
        record = _record(artifact, settings, versions) | {"extent": extent(artifact, settings)}
        if logs := self.log_digest(artifact):
            record["logs"] = logs
        self.made[artifact.key] = record

    def versions(self, artifacts: Iterable[Artifact]) -> list[str]:
        """Return the versions of reflectrl that made some artifacts and their inputs, in their order."""
        versions: dict[str, None] = {}
        for artifact in artifacts:
            versions |= dict.fromkeys(self.versions(artifact.needs))
            if artifact.key in self.made:
                versions |= dict.fromkeys(self.made[artifact.key].get("versions", EARLIER).split(", "))
        return list(versions)

    def log_digest(self, artifact: Artifact) -> str:
        """Return a digest of the files of lines that an artifact consists of; "" if it has none."""
        folder = self.path.parent
        digests = [[path.relative_to(folder).as_posix(), digest_of(path)] for path in artifact.logs(folder)]
        return _hash(digests) if digests else ""

    def has_other_logs(self, artifact: Artifact, settings: Mapping[str, Any]) -> bool:
        """Return whether a finished artifact's files of lines have changed, or are missing, since they were written."""
        record = self.made.get(artifact.key, {})
        is_same = record.get("fingerprint") == fingerprint(artifact, settings)
        return is_same and "logs" in record and record["logs"] != self.log_digest(artifact)

    def says(self, artifact: Artifact, settings: Mapping[str, Any]) -> str:
        """Return the status of an artifact without reading its files: "done", "begun", "outdated" or "missing"."""
        record = self.made.get(artifact.key, {})
        if not artifact.is_begun(self.path.parent):
            return "missing"
        if record and record["fingerprint"] != fingerprint(artifact, settings):
            return "outdated"
        done = record.get("extent") == extent(artifact, settings) and artifact.exists(self.path.parent)
        return "done" if done else "begun"


EARLIER = "an earlier version"
"""Version of what was made before versions were noted."""


def _record(artifact: Artifact, settings: Mapping[str, Any], versions: str) -> dict[str, str]:
    record = {"fingerprint": fingerprint(artifact, settings)}
    if needs_environment(artifact) and (environment := source_of(settings)):
        record["environment"] = environment
    return record | ({"versions": versions} if versions else {})


def is_of_another_source(graph: Graph, state: State, settings: Mapping[str, Any]) -> bool:
    """Tell whether the environment was edited after some artifact was begun, while the settings stayed the same.

    Artifacts of earlier versions have no digest of the environment. They are accepted, which is noted, and one line
    says so.
    """
    folder, environment, accepted = state.path.parent, source_of(settings), False
    for key, artifact in graph.items():
        record = state.made.get(key)
        if artifact.always or record is None or not artifact.is_begun(folder):
            continue
        before = record.get("environment", "")
        if before == environment or not needs_environment(artifact):
            continue
        if record["fingerprint"] != fingerprint(artifact, settings, before):
            continue  # other settings differ as well, which is refused
        if before:
            return True
        record |= {"fingerprint": fingerprint(artifact, settings), "environment": environment}
        accepted = True
    if accepted:
        LOG.warning(
            "reflectrl: %s was begun by a version that noted no digest of the environment's source; "
            "the environment is taken to be unchanged",
            folder,
        )
        state.write()
    return False


def refuse_other_settings(
    graph: Graph,
    state: State,
    before: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    named_by: str = "folder",
) -> None:
    """Refuse to continue in a folder whose artifacts were made, or begun, with other settings.

    Args:
        before: the settings with which the folder was last used, for artifacts that `state` does not know.
        now: the settings of this run.
        named_by: name of the option that selects another folder, for the message.

    Raises:
        UserError: names the first key that differs.
    """
    folder, now, before = state.path.parent, _deciding(now), _deciding(before) if before else None
    for key, artifact in graph.items():
        if artifact.always or not artifact.is_begun(folder):
            continue
        wanted = fingerprint(artifact, now)
        recorded = state.made.get(key, {}).get("fingerprint") or (fingerprint(artifact, before) if before else wanted)
        if recorded != wanted:
            names = dict.fromkeys(settings_of(artifact))
            differences = (difference(name, value_of(before or {}, name), value_of(now, name)) for name in names)
            files = ", ".join(dict.fromkeys(files_of(artifact)))
            other = f"another content of {files}" if files else f"{key!r} made with other settings"
            detail = next(filter(None, differences), other)
            forks = named_by == "folder" and is_typed()  # only the command line can fork
            fork = f" ({option('fork', folder)} takes over what stays the same)" if forks else ""
            raise UserError(
                f"{folder} holds a run with {detail}; use another {option(named_by)}{fork}, or remove this one"
            )


def difference(key: str, before: Any, now: Any) -> str | None:
    """Describe the first key in which two sections differ; None if they are equal."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        inner = (difference(f"{key}.{name}", before.get(name), now.get(name)) for name in {**before, **now})
        return next(filter(None, inner), None)
    same = json.dumps(before) == json.dumps(now)  # a list of a recipe is a tuple or a list
    return None if same else f"{key} = {_shown(before)}, not {_shown(now)}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def listing(graph: Graph, state: State, settings: Mapping[str, Any]) -> list[str]:
    """Return one line per artifact: its stage, its key, its status, and its inputs."""
    lines = []
    for key, artifact in graph.items():
        status = "made by every run" if artifact.always else state.says(artifact, settings)
        inputs = [needed.key.removesuffix(f" (seed {artifact.seed})") for needed in artifact.made_from]
        sources = ", ".join([*inputs, *(f"[{name}]" for name in artifact.settings), *artifact.files])
        lines.append(f"{artifact.stage:6} {key}: {status}{f'; from {sources}' if sources else ''}")
    return lines
