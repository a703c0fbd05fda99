"""Order of the tests: the longest files first, and with pytest-xdist all tests of a file in one process.

So what a file trains for its tests is trained once, and all processes end at about the same time.
"""

from pathlib import Path
from typing import Any

import pytest

LONGEST = (
    "wings/test_docs.py",
    "benchmarks/test_gpu.py",
    "runs/test_ranks.py",
    "tools/workbench/test_contributing.py",
    "wings/text/rewards/test_families.py",
    "learn/test_online.py",
    "models/test_compiled.py",
    "tools/workbench/test_gym_project.py",
    "tools/workbench/test_bad_environments.py",
    "runs/test_kills.py",
    "tools/sweeps/test_sweeps.py",
    "benchmarks/test_drills.py",
    "learn/test_packed_update.py",
    "serving/server/test_server.py",
    "runs/test_run.py",
    "benchmarks/test_rl_throughput.py",
    "wings/autoexplore/test_hostile_walks.py",
    "test_house.py",
    "serving/server/test_rollouts.py",
    "learn/test_exploration.py",
    "benchmarks/test_programs.py",
    "benchmarks/test_ranks.py",
    "benchmarks/test_fitting.py",
    "test_trust.py",
    "examples/test_carried.py",
    "tools/watching/test_watching.py",
    "test_trust_drill.py",
    "runs/test_damage.py",
    "wings/text/test_online_text.py",
    "wings/autoexplore/test_hostile.py",
    "wings/autoexplore/test_hostile_clones.py",
    "tools/browser/test_graph.py",
    "runs/test_precision.py",
    "serving/endpoints/test_dagger.py",
)
"""Files that take more than fifteen seconds, the longest first, as seen in `pytest --durations`."""

_RANKS = {str(Path(__file__).parent / name): rank for rank, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _RANKS.get(str(item.path), len(_RANKS)))  # the sort keeps the order of all others


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "load":  # another way was asked for
        return None
    config.option.loadscopereorder = False  # by the number of a file's tests, which says little about its time
    return LoadFileScheduling(config, log)
