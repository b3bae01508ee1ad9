"""The number of threads is chosen by timing steps, and does not change results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fedsat
from fedsat.engine.threads import BLOCK, BLOCKS, WINDOW, ThreadChoice

TRIAL = 2 * BLOCK * BLOCKS
"""Steps until the choice is made."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch have two threads, whatever the tests use."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Machine:
    """A clock on which a step takes as long as its number of threads says, except for its slow steps."""

    def __init__(self, seconds: dict[int, float], slow: tuple[int, ...] = ()) -> None:
        self.seconds, self.slow, self.now, self.used = seconds, slow, 0.0, list[int]()

    def clock(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += 100 if len(self.used) in self.slow else self.seconds[torch.get_num_threads()]
        self.used.append(torch.get_num_threads())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("one", "two", "chosen"), [(1.0, 2.0, 1), (2.0, 1.0, 2)])
def test_the_faster_number_is_kept(one: float, two: float, chosen: int) -> None:
    # Steps 0 and 5 begin a block and are not timed; step 7 is an outlier, which a median ignores.
    machine = Machine({1: one, 2: two}, slow=(0, 5, 7))
    choice = ThreadChoice(nn.Linear(2, 2), machine.clock)
    with choice.applied():
        for _ in range(TRIAL + 4):
            choice.take(machine.step)
    assert machine.used == ([2] * BLOCK + [1] * BLOCK) * BLOCKS + [chosen] * 4
    assert torch.get_num_threads() == 2
    with choice.applied():
        assert torch.get_num_threads() == chosen
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_another_trial_follows_when_the_pace_changes() -> None:
    """At first two threads are faster. Then another program needs the cores, and later it ends."""
    machine = Machine({1: 2.0, 2: 1.0})
    choice = ThreadChoice(nn.Linear(2, 2), machine.clock)
    with choice.applied():
        for seconds, chosen in (({1: 2.0, 2: 1.0}, 2), ({1: 4.0, 2: 9.0}, 1), ({1: 1.5, 2: 1.0}, 2)):
            machine.seconds = seconds
            for _ in range(WINDOW + TRIAL):
                choice.take(machine.step)
            assert choice.chosen == chosen
            trials = len(machine.used)
            machine.seconds = {number: 1.9 * each for number, each in seconds.items()}  # not twice as slow: no trial
            for _ in range(2 * WINDOW):
                choice.take(machine.step)
            assert machine.used[trials:] == [chosen] * 2 * WINDOW


@pytest.mark.usefixtures("two_threads")
def test_steps_of_fewer_lanes_do_not_start_a_trial() -> None:
    machine = Machine({1: 8.0, 2: 4.0})
    choice = ThreadChoice(nn.Linear(2, 2), machine.clock)
    with choice.applied():
        for _ in range(TRIAL):
            choice.take(machine.step, lanes=4)
        machine.seconds = {1: 2.0, 2: 1.0}
        for _ in range(2 * WINDOW):
            choice.take(machine.step, lanes=1)
    assert set(machine.used[TRIAL:]) == {2}


def take_all(choice: ThreadChoice, steps: Iterator[int]) -> None:
    """Take steps until one raises an error."""
    while True:
        choice.take(lambda: next(steps))


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_step_leaves_torch_as_it_was() -> None:
    choice, steps = ThreadChoice(nn.Linear(2, 2)), iter(range(BLOCK + 1))
    with pytest.raises(StopIteration), choice.applied():
        take_all(choice, steps)  # the error comes in the second block, with one thread
    assert torch.get_num_threads() == 2


def test_one_thread_needs_no_choice() -> None:
    assert torch.get_num_threads() == 1  # as in all tests
    choice = ThreadChoice(nn.Linear(2, 2))
    with choice.applied():
        assert choice.chosen == 1


SMALL = {"clients": 12, "per_round": 2, "workers": 1, "rounds": 1, "epochs": 1, "engine": "stacked"}
"""Just enough steps for a trial."""


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_a_run_makes_the_choice_and_its_results_stay_the_same(model: str) -> None:
    chosen = fedsat.run(**SMALL, model=model)
    assert chosen.setup.engine.threads.chosen in (1, 2)
    for threads in (1, 2):
        fixed = fedsat.prepare(fedsat.configure(**SMALL, model=model))
        fixed.setup.engine.threads.chosen = threads
        fedsat.train(fixed)
        for name, tensor in chosen.model.params.items():
            assert torch.equal(tensor, fixed.model.params[name]), f"{name} depends on the number of threads"


@pytest.mark.usefixtures("two_threads")
def test_networks_with_norms_keep_the_number() -> None:
    choice = ThreadChoice(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    with choice.applied():
        assert choice.chosen == 2
