"""A node does only what it agreed to, whatever the server sends, and reveals no more to the server than it must."""

from __future__ import annotations

import resource
import signal
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import Model
from fedsat.experiment.config import complete
from fedsat.models import build_model, count_parameters

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Context, RecordDict

from fedsat.flower import masks
from fedsat.flower.agreement import Agreement, AgreementError
from fedsat.flower.client import answer, handle
from fedsat.flower.evaluation_messages import Evaluate, EvaluateWorker
from fedsat.flower.messages import Hello, Refused, Train, Trained
from fedsat.flower.records import Message
from fedsat.flower.run_spec import RunSpec
from tests.support.faulty_nodes import LENIENT

CLASSES = tuple("0123456789")
USUAL: dict[str, Any] = {
    "algorithm": "fedavg",
    "clients": 2,
    "per_round": 2,
    "partition": "iid",
    "model": {"name": "mlp", "hidden": [4]},
    "batch_size": 8,
}


def settings(**others: Any) -> dict[str, Any]:
    return complete({**USUAL, **others})


def run_of(table: dict[str, Any], **others: Any) -> RunSpec:
    return RunSpec(table, CLASSES, False, (0.1,), (0.3,), mean_samples=3000.0, **others)


def node(**config: Any) -> Context:
    return Context(0, 1, {"dataset": "mnist-mini", "partition-id": 0, **config}, RecordDict(), {})


def agreed(tmp_path: Path, **terms: Any) -> Context:
    file = tmp_path / "agreement.toml"
    file.write_text(replace(Agreement(), **terms).to_toml())
    return node(agreement=str(file))


def model(table: dict[str, Any]) -> Model:
    module = build_model(table["model"], (1, 28, 28), 10, 0)
    return Model({name: tensor.detach() for name, tensor in module.named_parameters()}, {})


def why(message: Message, context: Context) -> str:
    reply = answer(message.kind, message.pack(), context)
    assert Refused.sent_in(reply), reply
    return Refused.unpack(reply).why


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a node could import, and that leaves a file when it is imported."""
    (tmp_path / "housekeeping.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        "from fedsat.models import MLP as Net\nfrom fedsat.algorithms import *\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "housekeeping", raising=False)
    return tmp_path / "ran"


EVIL = "housekeeping:Net"
IMPORTS: dict[str, dict[str, Any]] = {
    "model": {"model": {"name": EVIL}},
    "model by name": {"model": EVIL},
    "algorithm": {"algorithm": {"name": EVIL}},
    "objective": {"algorithm": {"name": "fedavg", "objective": {"name": EVIL}}},
    "objective by name": {"algorithm": {"name": "fedavg", "objective": EVIL}},
    "weighting": {"algorithm": {"name": "fedavg", "weighting": {"name": EVIL}}},
    "aggregator": {"algorithm": {"name": "fedavg", "aggregator": {"name": EVIL}}},
    "aggregator by its old name": {"algorithm": {"name": "fedavg", "combination": EVIL}},
    "partition": {"partition": {"name": EVIL}},
    "optimizer": {"optimizer": EVIL},
    "lr_schedule": {"lr_schedule": EVIL},
    "attack": {"attack": EVIL},
}


@pytest.mark.parametrize("case", IMPORTS)
def test_no_module_is_imported_that_is_not_listed(case: str, spy: Path) -> None:
    table = {**settings(), **IMPORTS[case]}
    for message in (Hello(run_of(table)), Train(run_of(table), 0, 1, 0, Model({}, {}), {}, False)):
        assert f"is {EVIL!r}, which is not in " in why(message, node())
    assert not spy.exists()
    assert "housekeeping" not in sys.modules


@pytest.mark.parametrize("dataset", ["housekeeping:data", "/etc/passwd", "mnist", "."])
def test_the_server_does_not_choose_the_data(dataset: str, spy: Path) -> None:
    """A node with its own data ignores the run's dataset; for others, a run may choose only datasets of the package."""
    assert Hello(run_of(settings(dataset=dataset))).kind == "query.hello"
    reply = answer("query.hello", Hello(run_of(settings(dataset=dataset))).pack(), node())
    assert not Refused.sent_in(reply)
    bare = Context(0, 1, {"partition-id": 0}, RecordDict(), {})
    assert why(Hello(run_of(settings(dataset=dataset))), bare) == "UsageError on the node, whose log has the details"
    assert not Refused.sent_in(answer("query.hello", Hello(run_of(settings())).pack(), bare))
    assert not spy.exists()


def test_a_listed_module_is_used(spy: Path, tmp_path: Path) -> None:
    table = settings(model=EVIL)  # imports it in this test as well
    own = agreed(tmp_path, models=("housekeeping:Net",))
    assert not Refused.sent_in(answer("query.hello", Hello(run_of(table)).pack(), own))
    assert spy.exists()
    assert "model is 'mlp', which is not in models" in why(Hello(run_of(settings())), own)


def test_no_file_is_opened_that_the_server_names(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("diagnosis\nplague\n")
    table = settings(partition={"name": "file", "path": str(tmp_path / "secret.csv")})
    assert "partition is 'file', which is not in partitions" in why(Hello(run_of(table)), node())
    listed = agreed(tmp_path, partitions=("file",))
    told = why(Hello(run_of(table)), listed)
    assert told == "DataError on the node, whose log has the details"  # neither the path nor the line


BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "min_batch_size": ({"batch_size": 1}, "batch_size is 1; this node accepts at least 8"),
    "max_epochs": ({"epochs": 21}, "epochs is 21; this node accepts at most 20"),
    "max_steps": ({"steps": 10_001}, "steps is 10001; this node accepts at most 10000"),
    "max_lr": ({"lr": 1000.0}, "lr is 1000; this node accepts at most 1 "),
    "max_clients": ({"clients": 10**12}, "clients is 1e+12; this node accepts at most 100000"),
    "max_image_size": ({"image_size": 10**6}, "image_size is 1e+06; this node accepts at most 1024"),
    "precisions": ({"precision": "float64"}, "precision is float64; accepted: float32, bf16"),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_hold_for_every_message(bound: str) -> None:
    change, text = BOUNDS[bound]
    run, none = run_of({**settings(), **change}), Model({}, {})
    messages: list[Message] = [
        Hello(run), Train(run, 0, 1, 0, none, {}, False), EvaluateWorker(run, 0, {}, "n"), Evaluate(run, 0, "local", [])
    ]  # fmt: skip
    for message in messages:
        told = why(message, node())
        assert told.startswith(text)
        assert f"({bound})" in told


def test_a_large_network_is_refused_without_memory_for_it(tmp_path: Path) -> None:
    table = settings(model={"name": "mlp", "hidden": [10**9, 10**9]})
    assert count_parameters(table["model"], (1, 28, 28), 10) > 10**18
    told = why(Train(run_of(table), 0, 1, 0, Model({}, {}), {}, False), node())
    assert told.startswith("parameters of the network is 1e+18; this node accepts at most 1e+08 (max_parameters)")


def test_large_messages_and_long_work_are_refused(tmp_path: Path) -> None:
    table = settings()
    large = Train(run_of(table), 0, 1, 0, Model({"w": torch.zeros(10**6)}, {}), {}, False)
    assert "message in megabytes is 4.00" in why(large, agreed(tmp_path, max_megabytes=1.0))
    before = signal.getsignal(signal.SIGALRM)
    endless = run_of(settings(epochs=20, batch_size=8, model={"name": "lenet5"}))
    work = Train(endless, 0, 1, 0, model(endless.settings), {}, False)  # type: ignore[arg-type]
    assert "takes longer than 0.2 s (max_seconds)" in why(work, agreed(tmp_path, max_seconds=0.2))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.setitimer(signal.ITIMER_REAL, 0) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_request_takes_no_more_memory_than_agreed(tmp_path: Path) -> None:
    table = settings(model={"name": "mlp", "hidden": [5000, 5000]})  # 29 million parameters, 116 MB
    work, before = Hello(run_of(table)), resource.getrlimit(resource.RLIMIT_DATA)
    assert not Refused.sent_in(answer("query.hello", work.pack(), agreed(tmp_path, max_gigabytes=0.2)))
    large = Train(run_of(table), 0, 1, 0, Model({}, {}), {}, False)
    assert "needs more than 0.05 GB of memory (max_gigabytes)" in why(large, agreed(tmp_path, max_gigabytes=0.05))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_many_classes_are_refused(tmp_path: Path) -> None:
    names = tuple(map(str, range(10_001)))
    run = RunSpec(settings(), names, False)
    for message in (Hello(run), Evaluate(run, 0, "local", [])):
        assert why(message, node()) == "classes is 10001; this node accepts at most 10000 (max_classes)"


def test_small_samples_and_rare_classes(tmp_path: Path) -> None:
    hello = Hello(run_of(settings()))
    assert why(hello, agreed(tmp_path, min_samples=3001)) == "samples: fewer than 3001 (min_samples)"
    told = why(hello, agreed(tmp_path, min_class_samples=1000))
    assert told == "samples: a class has fewer than 1000 (min_class_samples)"
    Agreement(min_samples=5, min_class_samples=2).check_samples(np.array([3, 0, 2]))
    for counts in ([4, 0, 0], [4, 1, 2]):
        with pytest.raises(AgreementError):
            Agreement(min_samples=5, min_class_samples=2).check_samples(np.array(counts))


def test_histograms_only_as_sums(tmp_path: Path) -> None:
    own, table = agreed(tmp_path, histograms=False), settings()
    run, sent = run_of(table), model(table)
    asked: list[Message] = [
        Hello(run_of(settings(client_accuracy="test-split"))),
        Hello(RunSpec(table, CLASSES, True)),
        Train(run, 0, 1, 0, sent, {}, True),
        EvaluateWorker(run, 0, {"a": sent}, "nonce"),
        EvaluateWorker(run, 0, {"a": sent}, "nonce", True, {"a": {masks.public_key(masks.new_secret()): 1}}),
    ]
    for message in asked:
        assert "asks for this node's own counts by class, but histograms is false" in why(message, own)
    assert not Refused.sent_in(answer("train", Train(run, 0, 1, 0, sent, {}, False).pack(), own))


def test_only_the_run_s_network_and_what_the_method_broadcasts_are_received() -> None:
    table = settings(algorithm="scaffold")
    sent, none = model(table), Model({}, {})
    control = {"control": {name: torch.zeros_like(tensor) for name, tensor in sent.params.items()}}
    assert "is missing" in why(Train(run_of(table), 0, 1, 0, none, control, False), node())
    grown = Model({**sent.params, "layers.0.bias": torch.zeros(900)}, {})
    assert "is unknown" in why(Train(run_of(table), 0, 1, 0, grown, control, False), node())
    assert "the method broadcasts control besides the model" in why(
        Train(run_of(table), 0, 1, 0, sent, {}, False), node()
    )
    assert "this node is not client 1" in why(Train(run_of(table), 1, 1, 0, sent, control, False), node())


def test_errors_stay_on_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hidden = tmp_path / "patients-of-dr-jekyll"
    context = Context(0, 1, {"folder": str(hidden)}, RecordDict(), {})
    assert why(Hello(run_of(settings())), context) == "DataError on the node, whose log has the details"
    assert str(hidden) in caplog.text
    context.node_config["agreement"] = str(LENIENT)
    assert str(hidden)[:100] in why(Hello(run_of(settings())), context)


@pytest.mark.parametrize("run", ["", "[" * 10**5, "{}", '{"settings": 1e999}', "x" * 2**23])
def test_unreadable_requests(run: str) -> None:
    records = Hello(run_of(settings())).pack()
    records.config_records["fedsat"]["run"] = run
    assert Refused.unpack(answer("query.hello", records, node())).why.startswith("the request has no readable run")
    assert Refused.sent_in(answer("query.hello", RecordDict(), node()))


def test_agreements_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "agreement.toml"
    for text, told in (
        ("min_batch = 3", "unknown setting of the agreement 'min_batch'; did you mean 'min_batch_size'"),
        ("min_batch_size = 0", "agreement.min_batch_size is 0; it must be at least 1"),
        ("[", "cannot read the agreement"),
    ):
        file.write_text(text)
        with pytest.raises(fedsat.UsageError, match=told):
            Agreement.of_node({"agreement": str(file)})
        assert "UsageError" in why(Hello(run_of(settings())), node(agreement=str(file)))  # nothing without it
    with pytest.raises(fedsat.UsageError, match="cannot read the agreement"):
        Agreement.of_node({"agreement": str(tmp_path / "gone")})
    some = Agreement(models=("mlp",), max_lr=0.1)
    file.write_text(some.to_toml())
    assert Agreement.of_node({"agreement": str(file)}) == some


def test_the_agreement_of_a_local_federation_accepts_its_run(spy: Path) -> None:
    config = fedsat.configure(
        **USUAL | {"batch_size": 1, "model": "housekeeping:Net", "epochs": 50, "precision": "float64", "lr": 3.0}
    )
    assert Agreement.covering(config).config_of(config.table()) == config
    with pytest.raises(AgreementError):
        Agreement().config_of(config.table())


def test_the_default_settings_are_accepted() -> None:
    table = fedsat.configure().table()
    assert Agreement().config_of(table).table() == table
    for method in fedsat.algorithms.algorithms:
        Agreement().config_of({**settings(), "algorithm": {"name": method}})


def test_the_documentation_shows_the_defaults() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "concepts" / "trust.md"
    text = page.read_text().partition("```toml\n")[2].partition("```")[0]
    assert Agreement(**tomllib.loads(text)) == Agreement()
    assert tomllib.loads(text).keys() == vars(Agreement()).keys()


def test_what_is_accepted_is_done() -> None:
    table = settings()
    reply = handle("train", Train(run_of(table), 0, 1, 0, model(table), {}, True, True).pack(), node())
    assert isinstance(reply, Trained)
    assert reply.samples == int(reply.counts["labels"].sum()) == 3000
