//! Projector.
