"""`run` checks an environment of the user's own before it trains in it for the first time."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

from reflectrl.cli.run import RunOption
from reflectrl.core.config import Recipe
from reflectrl.core.plugins import announced, one_line
from reflectrl.core.types import UserError
from reflectrl.runs.graph import ENVIRONMENT, kind_of


@dataclass(frozen=True)
class CheckFirst(RunOption):
    """The option `--no-check` of `reflectrl run`."""

    no_check: bool = False
    """Skip the check of your own environment, which a new run does before it trains."""

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Check the environment, unless it is installed or the run has begun already.

        Raises:
            UserError: names the broken promise.
        """
        name = recipe.env.get("name")
        if self.no_check or name is None or kind_of(recipe) is not ENVIRONMENT:
            return
        if name in announced("envs") or name.startswith("reflectrl."):
            return
        if (folder / "recipe.toml").is_file() or recipe.env_workers:
            return
        from reflectrl.core.envs import make  # slow imports
        from reflectrl.tools.workbench.check import EnvCheckError, check_text_env

        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                check_text_env(functools.partial(make, recipe.env))
        except EnvCheckError as error:
            raise UserError(
                f"environment {name!r} breaks a promise: {error}; fix it, or train without the check: --no-check"
            ) from error
        except UserError:
            raise
        except Exception as error:  # of the environment's own code
            raise UserError(f"environment {name!r} raised {one_line(error)}") from error
        for about in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
            print(f"note: {about}", flush=True)
        print(f"{name}: every promise is kept (more: reflectrl check-env)", flush=True)
