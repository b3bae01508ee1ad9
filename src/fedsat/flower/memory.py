"""What a node stores between messages, hidden from the server: the client's state, a secret, and an account of what it
has sent.

The state after a round is stored next to the previous one until the server says which of them it used. So an update
that arrived too late or was refused has no effect, as if the client had not been sampled.

A node whose configuration has `state` keeps all of it in files, which outlive its processes (`stores.Files`). Otherwise
it is in the node's Flower context, as long as the SuperNode runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from fedsat.flower import masks
from fedsat.flower.account import NAME, Account
from fedsat.flower.stores import Files, Records, Store
from fedsat.tree import State


class Memory:
    """A node's memory of one run."""

    def __init__(self, store: Store, account: Callable[[], AbstractContextManager[Account]]) -> None:
        self._store = store
        self.account = account
        """Opens the account of all runs, which no other process of this node changes meanwhile."""

    @staticmethod
    @contextmanager
    def of(context: Context, run: str) -> Iterator[Memory]:
        """Yield the memory of a run, by its ID, which no other process of this node changes meanwhile.

        Of a run without an ID, only the account is kept on disk.
        """
        folder = context.node_config.get("state")
        if not folder:
            yield Memory.within(context.state)
            return
        parent = Path(str(folder)).expanduser()

        def account() -> AbstractContextManager[Account]:
            return Account.opened(run, Files.locked(parent, NAME))

        if not run:
            yield Memory(Records(context.state), account)
            return
        with Files.locked(parent, run) as files:
            yield Memory(files, account)

    @staticmethod
    def within(records: RecordDict) -> Memory:
        """Return a memory that ends with these records, which are those of one Flower run."""
        store = Records(records)
        return Memory(store, lambda: Account.opened("", nullcontext(store)))

    @property
    def lasts(self) -> bool:
        """Whether it outlives the node's processes."""
        return self._store.lasts

    def reset(self) -> None:
        """Draw a new secret when the server greets this node. The rest is kept, as the server may have restarted.

        A secret on disk is kept as well. The server recognises the node by its public half.
        """
        if not self.lasts or "secret" not in self._store.facts:
            self._put("secret", masks.new_secret().hex())

    @property
    def secret(self) -> bytes:
        """The node's secret for this run."""
        if "secret" not in self._store.facts:
            self.reset()
        return bytes.fromhex(self._store.facts["secret"])

    @property
    def client(self) -> int:
        """The client that the server took this node for when it last trained, or −1."""
        return int(self._store.facts.get("client", -1))

    @property
    def party(self) -> str:
        """The node's secrets of the present round of secure aggregation; empty if there is none."""
        return str(self._store.facts.get("party", ""))

    @party.setter
    def party(self, text: str) -> None:
        self._put("party", text)

    def load(self, used: int) -> State | None:
        """Return the client's state after round `used`, the last whose update the server used, and drop any other.

        The result is None if the server has never used an update (0), or if the node has lost the state.
        """
        state = self._store.get(used) if used in self._store.rounds() else None
        self._store.keep({used})
        return state

    def store(self, client: int, round_number: int, state: State) -> None:
        """Store the client's state after a round, until the server says whether it used the update."""
        self._put("client", client)
        self._store.put(round_number, state)

    def _put(self, name: str, value: Any) -> None:
        if self._store.facts.get(name) != value:
            self._store.save({**self._store.facts, name: value})
