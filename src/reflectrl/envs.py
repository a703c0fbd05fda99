"""Name that earlier versions gave to `reflectrl.core.envs`."""

from reflectrl.core.moved import bridge

bridge(
    __name__,
    "reflectrl.core.envs",
    {
        "adapter": "reflectrl.core.envs.adapter",
        "base": "reflectrl.core.envs.base",
        "check": "reflectrl.tools.workbench.check",
        "pool": "reflectrl.core.envs.pool",
        "promises": "reflectrl.core.envs.contract",
        "teacher": "reflectrl.core.envs.teacher",
        "written": "reflectrl.core.envs.written",
    },
)
