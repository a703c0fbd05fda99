"""Text tasks: offline and online learning on completions with rewards."""
