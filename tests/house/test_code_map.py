import unittest

from fixture import RepositoryTest
from house_parts import code_map, crates


class CodeMap(RepositoryTest):
    def check(self, text):
        self.crate({"a": "mod x; #[cfg(test)] mod tests;", "a/x": "", "a/tests": "fn f() {}"})
        self.write({"ARCHITECTURE.md": text})
        return code_map.check(crates.find_crates(self.repository), self.repository)

    def test_files_and_folders_cover_the_code_and_tests_need_no_entry(self):
        text = (
            "# X\n## Code map\n| path | what |\n|---|---|\n"
            "| `crates/toy/src/lib.rs`, `crates/toy/src/a.rs` | `Bus` |\n| `crates/toy/src/a/` | |\n"
        )
        self.assertEqual(self.check(text), [])
        self.assertEqual(self.check("## The code map\n\n| `crates/toy/` | all |\n"), [])

    def test_a_file_that_no_entry_covers_fails(self):
        (error,) = self.check("## Code map\n| `crates/toy/src/lib.rs` | |\n| `crates/toy/src/a.rs` | |\n")
        self.assertIn("does not name crates/toy/src/a/x.rs", error)

    def test_an_entry_for_a_missing_file_fails(self):
        (error,) = self.check("## Code map\n| `crates/toy/src/` | |\n| `crates/toy/src/gone.rs` | |\n")
        self.assertIn("ARCHITECTURE.md:3: the code map names crates/toy/src/gone.rs, which does not exist", error)

    def test_a_folder_without_a_slash_fails(self):
        errors = self.check("## Code map\n| `crates/toy/src` | |\n")
        self.assertIn(
            "ARCHITECTURE.md:2: the code map names crates/toy/src, which does not exist; a folder ends with /", errors
        )

    def test_only_tables_of_the_map_are_read(self):
        text = "## Code map\n### Part\n| `crates/toy/src/` | |\n## Limits\n| `max_topics` | |\n"
        self.assertEqual(self.check(text), [])

    def test_no_map_fails(self):
        (error,) = self.check("## Paths\n| `crates/toy/src/` | |\n")
        self.assertIn("no code map", error)


if __name__ == "__main__":
    unittest.main()
