"""The words everything else uses: tasks, episodes, environments, prompts, players, recipes."""
