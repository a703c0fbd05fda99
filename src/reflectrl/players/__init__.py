"""Anything that can act: policy, reflector, expert, analyst, random, scripted."""

from reflectrl.players.base import Player, Seat
from reflectrl.players.policy import Policy
from reflectrl.players.reflector import Reflector
from reflectrl.players.simple import AnalystPlayer, ExpertPlayer, RandomPlayer, ScriptedPlayer

__all__ = ["AnalystPlayer", "ExpertPlayer", "Player", "Policy", "RandomPlayer", "Reflector", "ScriptedPlayer", "Seat"]
