"""The server of forks that all tests of a process share; it starts when it is first asked for."""

import atexit
import functools

from benchmarks.forks import Forks


@functools.cache
def forks() -> Forks:
    """A server of forks that ends with this process."""
    server = Forks()
    atexit.register(server.close)
    return server
