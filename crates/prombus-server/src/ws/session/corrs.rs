//! The parts of frames that their answers echo: the `corr`s (the correlation ids that clients choose), all in one allocation, and
//! the ignored fields (the names of unknown fields).

/// `corr`s in order, as JSON text.
#[derive(Debug, Default)]
pub(super) struct Corrs {
    /// All `corr`s, one after the other.
    text: String,
    /// Where the `corr` of each frame ends in `text`.
    ends: Vec<u32>,
    /// The ignored fields of frames that have some, by the number of the frame.
    ignored: Vec<(u32, Vec<String>)>,
}

impl Corrs {
    pub(super) fn push(&mut self, corr: Option<&str>) {
        // A corr is a JSON string or a number and never empty, so an empty text means that there is none.
        self.text.push_str(corr.unwrap_or(""));
        self.ends.push(self.text.len() as u32);
    }

    /// Like [`push`](Self::push), for a frame that may have ignored fields.
    pub(super) fn push_noting(&mut self, corr: Option<&str>, ignored: &[String]) {
        if !ignored.is_empty() {
            self.note(ignored);
        }
        self.push(corr);
    }

    #[cold]
    fn note(&mut self, ignored: &[String]) {
        self.ignored.push((self.ends.len() as u32, ignored.to_vec()));
    }

    /// Whether no frame had ignored fields.
    pub(super) fn has_no_ignored(&self) -> bool {
        self.ignored.is_empty()
    }

    /// The ignored fields of the frame with this number, counted from 0.
    pub(super) fn ignored(&self, number: usize) -> &[String] {
        if self.ignored.is_empty() {
            return &[];
        }
        let found = self.ignored.binary_search_by_key(&(number as u32), |(number, _)| *number);
        found.map_or(&[], |at| &self.ignored[at].1)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no frame had a `corr`.
    pub(super) fn is_silent(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| {
            let corr = &self.text[start as usize..end as usize];
            (!corr.is_empty()).then_some(corr)
        })
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.ignored.clear();
    }

    pub(super) fn byte_count(&self) -> usize {
        let ignored = self.ignored.iter().flat_map(|(_, names)| names).map(|name| name.len() + 24);
        self.text.capacity() + self.ends.capacity() * 4 + ignored.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrs_come_back_as_they_were_pushed() {
        let mut corrs = Corrs::default();
        let pushed = [Some("\"a\""), None, Some("12"), None];
        pushed.iter().for_each(|corr| corrs.push(*corr));
        assert_eq!(corrs.iter().collect::<Vec<_>>(), pushed);
        assert_eq!(corrs.len(), 4);
        assert!(!corrs.is_silent());
        corrs.clear();
        corrs.push(None);
        assert!(corrs.is_silent());
    }

    #[test]
    fn ignored_fields_stay_with_their_frame() {
        let mut corrs = Corrs::default();
        corrs.push(Some("1"));
        corrs.push_noting(None, &["a".to_owned()]);
        corrs.push_noting(Some("3"), &[]);
        corrs.push_noting(Some("4"), &["b".to_owned(), "c".to_owned()]);
        let ignored: Vec<_> = (0..4).map(|number| corrs.ignored(number).join(",")).collect();
        assert_eq!(ignored, ["", "a", "", "b,c"]);
        corrs.clear();
        assert!(corrs.ignored(1).is_empty());
    }
}
