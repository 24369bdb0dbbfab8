//! Writes BSON into one buffer, so that a bulk is written directly into its command.
//!
//! The driver's own builder allocates a buffer per document and copies each into the enclosing one, up to four times per event.

/// A BSON writer. `begin` and `end` nest documents and arrays.
#[derive(Debug, Default)]
pub(crate) struct BsonWriter {
    bytes: Vec<u8>,
}

/// A document or array that was begun and must be ended. Contains the position of its length in the buffer.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open(usize);

impl BsonWriter {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a document without a name: the outermost one.
    pub(crate) fn begin(&mut self) -> Open {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        Open(start)
    }

    /// Ends a document or an array.
    pub(crate) fn end(&mut self, open: Open) {
        self.bytes.push(0);
        let length = (self.bytes.len() - open.0) as u32;
        self.bytes[open.0..open.0 + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Appends fields that another writer wrote between `begin` and `end`.
    pub(crate) fn fields(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the type and name of a field. The name must not contain NUL, because a BSON name ends at NUL.
    fn name(&mut self, kind: u8, name: &str) {
        self.bytes.push(kind);
        self.bytes.extend(name.bytes().take_while(|&byte| byte != 0));
        self.bytes.push(0);
    }

    pub(crate) fn begin_document(&mut self, name: &str) -> Open {
        self.name(0x03, name);
        self.begin()
    }

    pub(crate) fn begin_array(&mut self, name: &str) -> Open {
        self.name(0x04, name);
        self.begin()
    }

    pub(crate) fn double(&mut self, name: &str, value: f64) {
        self.name(0x01, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn string(&mut self, name: &str, value: &str) {
        self.name(0x02, name);
        self.bytes.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    /// Writes binary data with the generic subtype.
    pub(crate) fn binary(&mut self, name: &str, value: &[u8]) {
        self.binary_of_kind(name, 0, value);
    }

    /// Writes a UUID.
    pub(crate) fn uuid(&mut self, name: &str, value: [u8; 16]) {
        self.binary_of_kind(name, 4, &value);
    }

    fn binary_of_kind(&mut self, name: &str, subtype: u8, value: &[u8]) {
        self.name(0x05, name);
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.push(subtype);
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn boolean(&mut self, name: &str, value: bool) {
        self.name(0x08, name);
        self.bytes.push(u8::from(value));
    }

    /// Writes a date, in milliseconds since 1970.
    pub(crate) fn date(&mut self, name: &str, ms: i64) {
        self.name(0x09, name);
        self.bytes.extend_from_slice(&ms.to_le_bytes());
    }

    pub(crate) fn null(&mut self, name: &str) {
        self.name(0x0a, name);
    }

    pub(crate) fn i32(&mut self, name: &str, value: i32) {
        self.name(0x10, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, name: &str, value: i64) {
        self.name(0x12, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{Document, RawDocumentBuf, doc};

    #[test]
    fn the_driver_reads_what_is_written() {
        let mut writer = BsonWriter::default();
        let outer = writer.begin();
        writer.double("double", 1.5);
        writer.string("text", "a\0é");
        writer.boolean("yes", true);
        writer.null("nothing");
        writer.i32("small", -7);
        writer.i64("large", i64::MIN);
        writer.date("when", 5);
        let array = writer.begin_array("list");
        writer.i32("0", 1);
        let inner = writer.begin_document("1");
        writer.string("a", "b");
        writer.end(inner);
        writer.end(array);
        writer.end(outer);
        let raw = RawDocumentBuf::from_bytes(writer.into_bytes()).expect("it is a document");
        let read = Document::try_from(raw.as_ref()).expect("it can be read");
        let expected = doc! {
            "double": 1.5, "text": "a\0é", "yes": true, "nothing": null, "small": -7_i32, "large": i64::MIN,
            "when": mongodb::bson::DateTime::from_millis(5), "list": [1_i32, { "a": "b" }],
        };
        assert_eq!(read, expected);
    }
}
