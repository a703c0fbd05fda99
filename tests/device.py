"""The device on which tests of models run: the CPU, unless $REFLECTRL_DEVICE names another (`cuda`)."""

import os

import torch

DEVICE = os.environ.get("REFLECTRL_DEVICE", "cpu")
ON_GPU = torch.device(DEVICE).type != "cpu"
