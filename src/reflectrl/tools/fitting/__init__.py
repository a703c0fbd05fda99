"""Memory check of runs with pretrained models, before anything is loaded."""
