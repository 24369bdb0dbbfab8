"""Creates small repositories for the tests of scripts/house."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from house_parts import crates, graphs  # noqa: E402


class RepositoryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="house-test-")
        self.addCleanup(folder.cleanup)
        self.repository = Path(folder.name).resolve()

    def write(self, files):
        """Writes {path: content}, relative to the repository."""
        for path, content in files.items():
            file = self.repository / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")

    def crate(self, modules, name="toy"):
        """Writes a crate from {"a": content of src/a.rs}. "lib" declares all top-level modules that it does not mention."""
        modules = dict(modules)
        library = modules.pop("lib", "")
        for module in modules:
            if "/" not in module and f"mod {module}" not in library and module != "main":
                library += f"\nmod {module};"
        files = {f"crates/{name}/src/{module}.rs": content for module, content in modules.items()}
        self.write({f"crates/{name}/Cargo.toml": "", f"crates/{name}/src/lib.rs": library + "\n", **files})
        return crates.load_crate(self.repository / "crates" / name)

    def graph(self, modules):
        return graphs.graphs_of(self.crate(modules))[0]

    def edges(self, modules):
        """The edges as {"a -> b"}."""
        return {f"{edge.source.name} -> {edge.target.name}" for edge in self.graph(modules).edges.values()}
