"""A node's tasks find no code in the folder where Flower unpacks projects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASK = """import sys
from pathlib import Path
from fedsat.flower.warm import ignore_code_in

home = Path(sys.argv[1])
sys.path.insert(0, str(home / "apps" / "evil"))  # as Flower does
assert __import__("early").__file__
ignore_code_in(home)
for module in ("evil", "evil.inner", "space"):
    try:
        __import__(module)
    except ModuleNotFoundError:
        continue
    raise AssertionError(module)
import colorsys, own  # the first is not loaded yet, and the project has a module of that name
print(colorsys.__file__, own.__file__)
"""


def test_a_project_s_modules_are_not_found_and_hide_no_others(tmp_path: Path) -> None:
    evil, own = tmp_path / "link" / "apps" / "evil", tmp_path / "own"
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for folder in (evil / "evil", evil / "space" / "inner", own):
        folder.mkdir(parents=True)
    for name in ("early.py", "colorsys.py", "evil/__init__.py", "evil/inner.py", "space/inner/__init__.py"):
        (evil / name).touch()
    (own / "own.py").touch()
    command = [sys.executable, "-c", ASK, str(tmp_path / "home")]
    done = subprocess.run(command, cwd=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "evil" not in done.stdout
    assert str(own / "own.py") in done.stdout
