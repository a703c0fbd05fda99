"""Indexes of `locate` go into a folder of the test, never into the user's cache."""

import pytest

from reflectrl.wings.autoexplore.locate import store


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path_factory.mktemp("cache")))
