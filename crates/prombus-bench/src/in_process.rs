//! The same loads on the library, in this process.
