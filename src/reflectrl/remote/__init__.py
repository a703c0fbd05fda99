"""Rollouts of online RL that a server plays: its weights follow those that learn, and what lags behind is measured."""
