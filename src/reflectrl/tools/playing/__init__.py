"""Episodes that people watch, play and record at the terminal, and episodes of other programs."""
