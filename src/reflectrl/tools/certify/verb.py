"""The verb `certify`. Slow imports happen inside the call, so that help stays quick."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.cli.projects import EnvName
from reflectrl.core.config.folders import replacing, require_writable
from reflectrl.core.config.values import read_value
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.runs.projects import env_section


@dataclass(frozen=True)
class Certify:
    """Certify an environment: is it deterministic, isolated, free of leaks, legible, fair in its reward, learnable?

    Exit code 0 means sound, 1 faulty, 2 that it cannot be made. Any argument of the environment is an option: --size 6
    """

    env: EnvName
    """Name of an environment, package.module:Class, the folder of a project, or an id of gymnasium (FrozenLake-v1)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", aliases=["-o"])] = None
    """File for the certificate as JSON."""
    badge: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File for a badge as SVG."""
    minutes: float = 5.0
    """Time limit of the training that shows whether it can be learned; 0 leaves it out."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Run all checks, print the certificate, and end with its exit code.

        Raises:
            UserError: the environment cannot be made, or a file cannot be written.
            SystemExit: with code 1 if there is a fault.
        """
        from reflectrl.tools.certify.certify import findings_of
        from reflectrl.tools.certify.gym_id import environment_of, is_gym_id
        from reflectrl.tools.certify.shown import badge, parts_shown, show
        from reflectrl.tools.certify.verdict import Certificate

        if self.minutes < 0:
            raise UserError(f"--minutes must be at least 0, not {self.minutes:g}")
        for path in filter(None, (self.out, self.badge)):
            require_writable(path.parent, f"folder {path.parent}")
        with environment_of(self.env) if is_gym_id(self.env) else _unchanged(self.env) as name:
            section = _plain(env_section(name, settings))
            _require_made(section, self.env)
            with parts_shown() as say:
                findings = list(findings_of(section, self.minutes, say))
        arguments = {key: value for key, value in section.items() if key != "name"}
        certificate = Certificate(self.env, arguments, findings)
        if self.out is not None:
            _write(self.out, json.dumps(certificate.report(), indent=1) + "\n")
        if self.badge is not None:
            _write(self.badge, badge(certificate))
        show(certificate)
        if not certificate.is_sound:
            raise SystemExit(1)


@contextmanager
def _unchanged(name: str) -> Iterator[str]:
    yield name


def _plain(section: dict[str, Any]) -> dict[str, Any]:
    """Return the section with typed words as the values they stand for, so that other processes read the same."""
    return {key: read_value(item) for key, item in section.items()}


def _require_made(section: dict[str, Any], name: str) -> None:
    """Refuse what cannot be made at all.

    Raises:
        UserError: as `make`, or the environment's tasks cannot be listed.
    """
    from reflectrl.core.envs import make

    env = make(section)
    try:
        if not env.tasks("train"):
            raise UserError(f"environment {name!r} has no training tasks")
    except UserError:
        raise
    except Exception as error:  # of the environment's own code
        raise UserError(f"environment {name!r} raised {one_line(error)}") from error
    finally:
        env.close()


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(text)
