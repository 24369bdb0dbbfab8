//! What a route is: how it is served, guarded and documented. The table is in `routes.rs`.

use super::access::Access;
use super::answer::Answered;
use super::call::Call;
use super::parameters::Parameter;
use axum::routing::MethodFilter;
use prombus::BoxFuture;

/// The methods that routes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

/// A route.
pub(super) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) handler: fn(Call) -> BoxFuture<'static, Answered>,
    /// Whether answers are compressed for those who ask for it.
    pub(super) is_compressed: bool,
    pub(super) about: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// Types of bodies that are taken, and their schemas.
    pub(super) bodies: &'static [Content],
    /// Whether the body may be left out.
    pub(super) is_body_optional: bool,
    /// Good answers.
    pub(super) answers: &'static [Content],
    /// Whether it also answers 201, with the same content and a `Location`.
    pub(super) created: bool,
    /// Statuses of errors, but for those that come with the access.
    pub(super) errors: &'static [u16],
}

/// A type of content, and its schema as JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) content_type: &'static str,
    pub(super) schema: &'static str,
}

impl Verb {
    pub(super) fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Delete => MethodFilter::DELETE,
        }
    }

    /// As it stands in an OpenAPI document.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}
