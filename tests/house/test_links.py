import importlib.machinery
import importlib.util
import unittest
from pathlib import Path

from fixture import RepositoryTest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "links"
loader = importlib.machinery.SourceFileLoader("links", str(SCRIPT))
links = importlib.util.module_from_spec(importlib.util.spec_from_loader("links", loader))
loader.exec_module(links)


class Links(RepositoryTest):
    def broken(self, page, others=None):
        files = {"docs/page.md": page, **(others or {})}
        self.write(files)
        return links.broken_links(self.repository, list(files))[0]

    def test_links_to_files_folders_headings_and_hosts_are_accepted(self):
        page = "# A `b` c\n[x](#a-b-c) [y](../src) [z](../README.md#twice-1) [h](https://host/nothing) [r][label]\n\n[label]: ../README.md\n"
        self.assertEqual(self.broken(page, {"README.md": "## Twice\n## Twice\n", "src/lib.rs": ""}), [])

    def test_a_missing_file_is_reported_with_its_line(self):
        self.assertEqual(self.broken("\n[x](gone.md)\n"), ["docs/page.md:2: gone.md: the repository has no such file"])

    def test_a_missing_heading_is_reported(self):
        broken = self.broken("[x](#b) [y](other.md#c)\n# A\n", {"docs/other.md": "# B\n"})
        self.assertEqual(len(broken), 2, broken)

    def test_an_undefined_label_is_reported(self):
        self.assertEqual(self.broken("[x][y]\n"), ["docs/page.md:1: [y]: the page does not define this label"])

    def test_code_is_not_searched_for_links_or_headings(self):
        broken = self.broken("```\n# A\n[x](gone)\n```\n`[x](gone)` [y](#a)\n")
        self.assertEqual(broken, ["docs/page.md:5: #a: the page has no such heading"])


if __name__ == "__main__":
    unittest.main()
