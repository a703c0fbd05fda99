"""Name that earlier versions gave to `reflectrl.core.teach`."""

from reflectrl.core.moved import bridge

bridge(
    __name__,
    "reflectrl.core.teach",
    {"record": "reflectrl.core.teach.record", "wrapper": "reflectrl.core.teach.wrapper"},
)
