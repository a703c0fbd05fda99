"""Episodes that people watch, play and record at the terminal, and those that another program has played."""
