//! Parses the fenced blocks of a Markdown file, and the steps of the transcripts in them.

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    /// The line number of its opening fence, counted from 1.
    pub line: usize,
    pub language: String,
    /// The text after the language: how the server is set up.
    pub setup: String,
    pub text: String,
}

/// One step of a transcript. `client` is the number of the connection: `→` is 1, `2→` is 2.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Send { client: u32, text: String },
    Receive { client: u32, text: String },
    Closed { client: u32, code: u16 },
}

pub fn blocks(markdown: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (index, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let (language, setup) = info.trim().split_once(' ').unwrap_or((info.trim(), ""));
                let (language, setup) = (language.to_owned(), setup.to_owned());
                open = Some(Block { line: index + 1, language, setup, text: String::new() });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

impl Block {
    pub fn is_transcript(&self) -> bool {
        self.language == "text" && (self.text.contains("→ ") || self.text.contains("← "))
    }

    /// The steps. A line that begins with two spaces continues the previous line; `#` begins a comment.
    pub fn steps(&self) -> Vec<Step> {
        let mut lines: Vec<String> = Vec::new();
        for line in self.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match (line.strip_prefix("  "), lines.last_mut()) {
                (Some(rest), Some(last)) => last.push_str(rest.trim_start()),
                _ => lines.push(line.to_owned()),
            }
        }
        lines.iter().map(|line| step(line)).collect()
    }
}

fn step(line: &str) -> Step {
    let (who, text) = line.split_once(' ').unwrap_or_else(|| panic!("not a step: {line}"));
    let client = |mark| who.strip_suffix(mark).map(|number| number.parse().unwrap_or(1));
    let text = text.trim().to_owned();
    if let Some(client) = client('→') {
        return Step::Send { client, text };
    }
    let client = client('←').unwrap_or_else(|| panic!("not a step: {line}"));
    match text.strip_prefix("closed ") {
        Some(code) => Step::Closed { client, code: code.parse().expect("a close code") },
        None => Step::Receive { client, text },
    }
}

#[test]
fn a_transcript_is_parsed_into_steps() {
    let text =
        "a\n```text auth\n# remark\n→ {\"op\":\n   \"AUTH\"}\n2← {}\n← closed 1008\n```\n```sh\nls\n```\n";
    let blocks = blocks(text);
    assert_eq!((blocks.len(), blocks[0].line, blocks[0].setup.as_str()), (2, 2, "auth"));
    assert!(blocks[0].is_transcript() && !blocks[1].is_transcript());
    let steps = [
        Step::Send { client: 1, text: "{\"op\":\"AUTH\"}".to_owned() },
        Step::Receive { client: 2, text: "{}".to_owned() },
        Step::Closed { client: 1, code: 1008 },
    ];
    assert_eq!(blocks[0].steps(), steps);
}
