"""What a file system does not have, as those of networks do not, costs speed and nothing else."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from fault_layer import (
    LOSE_RENAME,
    REFUSE_FCHMOD,
    REFUSE_FLOCK,
    REFUSE_FOLDER_SYNC,
    REFUSE_RENAME,
    environment,
)
from tiny_programs import build_program

from aotc.store.artifact import INDEX_FILE, list_programs, publish, write_program
from aotc.store.layout import Layout, StoreError
from aotc.store.validate import validate

RUNS = Path(__file__).with_name("filesystem_runs.py")


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (REFUSE_FLOCK, errno.ENOLCK),
        (REFUSE_FLOCK, errno.ENOSYS),
        (REFUSE_FLOCK, errno.EOPNOTSUPP),
        (REFUSE_RENAME, errno.ENOSYS),
        (REFUSE_RENAME, errno.EXDEV),
        (REFUSE_FCHMOD, errno.EPERM),
        (REFUSE_FOLDER_SYNC, errno.EINVAL),
        (LOSE_RENAME, errno.ENOENT),
        (LOSE_RENAME, errno.EIO),
        (REFUSE_FLOCK | REFUSE_RENAME | REFUSE_FCHMOD | REFUSE_FOLDER_SYNC, errno.ENOSYS),
    ],
)
def test_without_it_a_store_still_works(
    tmp_path: Path, shim: Path, refused: int, error: int
) -> None:
    done = subprocess.run(
        [sys.executable, RUNS, tmp_path, str(refused), str(error)],
        env=environment(shim, tmp_path / "control"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("sound\n", "", 0)


@pytest.mark.parametrize("times", [1, 9, 10])
def test_an_index_that_another_overwrites_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """As where two machines do not see each other's locks."""
    layout = Layout.create(tmp_path / "store")
    publish(layout, "other", [write_program(layout, build_program("other"))])
    others = (layout.root / INDEX_FILE).read_bytes()
    write_file = Layout.write_file
    left = times

    def write(self: Layout, name: str, content: bytes) -> None:
        nonlocal left
        write_file(self, name, content)
        if left:
            left -= 1
            write_file(self, name, others)

    monkeypatch.setattr(Layout, "write_file", write)
    stored = write_program(layout, build_program())
    if times < 10:
        publish(layout, "tiny", [stored])
        assert [each.model for each in list_programs(layout.root)] == ["other", "tiny"]
    else:
        with pytest.raises(StoreError, match="others keep overwriting") as caught:
            publish(layout, "tiny", [stored])
        assert "does not keep locks" in (caught.value.hint or "")
    assert validate(layout.root) == []
