//! Tests of the lease machine alone: they control the time and the responses of the store.

mod machine;
mod random_histories;
