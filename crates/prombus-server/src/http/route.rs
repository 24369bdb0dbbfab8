//! The definition of a route: how it is served, guarded and documented. The table of routes is in `routes.rs`.

use super::access::Access;
use super::answer::Answered;
use super::call::Call;
use super::parameters::Parameter;
use axum::routing::MethodFilter;
use prombus::BoxFuture;

/// The methods of the routes.
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
    /// Whether responses are compressed for clients that accept it.
    pub(super) is_compressed: bool,
    /// The description in `/openapi.json`.
    pub(super) about: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// Content types of accepted bodies, and their schemas.
    pub(super) bodies: &'static [Content],
    /// Whether the body may be left out.
    pub(super) is_body_optional: bool,
    /// Successful responses.
    pub(super) answers: &'static [Content],
    /// Whether the route also responds with 201, with the same content and a `Location`.
    pub(super) created: bool,
    /// Error statuses, without those that follow from the access, the bodies and the compression.
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

    /// The method.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    /// The method's name in an OpenAPI document.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }
}
