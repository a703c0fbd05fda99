"""Rollouts of online RL on servers: they receive the new weights, and the lag of their weights is measured."""
