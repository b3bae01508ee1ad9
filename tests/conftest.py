"""Settings for all tests."""

import signal

import torch

# Test problems are tiny: more threads would only wait for each other, especially on a busy machine.
torch.set_num_threads(1)

# Shells let background jobs ignore Ctrl-C, and the processes that tests start would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
