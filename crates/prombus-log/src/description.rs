//! The description of a file, line by line, for `inspect`.

use std::io;

/// Receives the lines of a description.
pub(crate) struct Description<'a> {
    /// Called with each line, and with whether it reports damage.
    put: &'a mut dyn FnMut(&str, bool) -> io::Result<()>,
}

impl<'a> Description<'a> {
    pub(crate) fn new(put: &'a mut dyn FnMut(&str, bool) -> io::Result<()>) -> Self {
        Self { put }
    }

    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        (self.put)(text.as_ref(), false)
    }

    pub(crate) fn damage(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        (self.put)(text.as_ref(), true)
    }
}
