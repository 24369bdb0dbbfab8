//! Measures how the cost of prombus grows with the number of topics, groups, connections, payload bytes and stored events.
//!
//! [`dimension`] defines what grows and in which steps, [`measure`] and [`backlog`] measure it on real servers, [`results`] stores
//! the measurements, [`verdicts`] finds costs that grow too much, and [`page`] and [`picture`] present the results.

pub mod backlog;
pub mod dimension;
pub mod measure;
pub mod page;
pub mod picture;
pub mod results;
pub mod verdicts;
