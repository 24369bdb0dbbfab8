//! The lease on its own, with time and answers made by the tests.

mod machine;
mod random_histories;
