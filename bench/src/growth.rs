//! What prombus costs when there is more of something: topics, groups, connections, bytes, and events that it keeps.
//!
//! [`dimension`] says what grows and in which steps, [`measure`] and [`backlog`] do it on real servers, [`results`] keeps it,
//! [`verdicts`] says what grows faster than it must, and [`page`] and [`picture`] show it.

pub mod backlog;
pub mod dimension;
pub mod measure;
pub mod page;
pub mod picture;
pub mod results;
pub mod verdicts;
