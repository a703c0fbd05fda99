"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any

import reflectrl
from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError


def connected() -> Any:
    """Return the module `ray`, connected to a cluster: at `RAY_ADDRESS`, on this machine, or a new one here.

    A worker of a cluster is already connected. Ray's own telemetry stays off if Ray is started here.

    Raises:
        UserError: Ray is not installed, or there is no cluster at that address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError(f"engine = 'ray' needs Ray; {install('ray')}") from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "")
        host, _, port = address.rpartition(":")
        try:
            if host and port.isdigit():  # Ray itself would go on trying for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            # Ray puts the folder of this moment on its workers' `sys.path`.
            with contextlib.chdir(Path(reflectrl.__file__).parents[1]):
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"engine = 'ray': no cluster at {address or 'this machine'}: {one_line(error)}") from error
    return ray
