"""Whether a run with pretrained models fits into the memory there is, told before anything is loaded."""
