//! What grows faster than it must.
