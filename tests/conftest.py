"""Settings for all tests."""

import signal

import torch

# Test problems are tiny: more threads only wait for each other, badly so when the machine is busy.
torch.set_num_threads(1)

# Where the tests are started in the background, shells let them ignore Ctrl-C, and so would the processes they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
