"""DangerousTaxi: gymnasium's Taxi as text, where an action that changes nothing ends the episode."""

from reflectrl.envs.taxi.env import TaxiEnv

__all__ = ["TaxiEnv"]
