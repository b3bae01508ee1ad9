"""Settings for all tests."""

import torch

# Test problems are tiny: more threads only wait for each other, badly so when the machine is busy.
torch.set_num_threads(1)
