"""The types and functions that all other packages use: tasks, episodes, environments, prompts, players, recipes."""
