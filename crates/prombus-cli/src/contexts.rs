//! Named servers of the user: the file of contexts, and which server a command uses.

mod choose;
mod file;

pub use choose::{Chosen, choose};
pub use file::{Context, Contexts, check_name, masked};
