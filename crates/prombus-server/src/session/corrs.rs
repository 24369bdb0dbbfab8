//! The `corr`s of frames that wait for an answer, all in one piece of memory.

/// `corr`s in order, as JSON text.
#[derive(Debug, Default)]
pub(super) struct Corrs {
    text: String,
    ends: Vec<u32>,
}

impl Corrs {
    pub(super) fn push(&mut self, corr: Option<&str>) {
        // A corr is a JSON string or a number, so it is never empty: empty stands for none.
        self.text.push_str(corr.unwrap_or(""));
        self.ends.push(self.text.len() as u32);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether all are none.
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
    }

    pub(super) fn byte_count(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4
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
}
