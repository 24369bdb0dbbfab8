//! The same load on prombus and on its peers.

pub mod peer;
pub mod process;
pub mod wire;
