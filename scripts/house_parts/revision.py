"""Checks out another revision of the repository to a temporary folder."""

import io
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

WANTED = ("crates", "bench")


@contextmanager
def checked_out(repository, revision):
    """Yields a temporary folder with the Rust code of the revision, and deletes it afterwards."""

    def git(*arguments):
        result = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"git {arguments[0]} {revision}: {result.stderr.decode().strip()}")
        return result.stdout

    present = git("ls-tree", "--name-only", revision, "--", *WANTED).decode().split()
    archive = git("archive", "--format=tar", revision, "--", *present)
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, members=[member for member in tar if member.name.endswith((".rs", ".toml"))])
        yield Path(folder)
