//! Scopes: the permissions of a token, each written as one word.

use prombus_protocol::{Pattern, TopicError};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One permission of a token. As text: `publish:<pattern>`, `subscribe:<pattern>`, `admin`.
///
/// A pattern covers dead letters only if it begins with `dlq.`: `subscribe:**` does not allow reading `dlq.orders`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Publish to the topics of a pattern.
    Publish(Pattern),
    /// Read the topics of a pattern: subscribe, replay, export, state.
    Subscribe(Pattern),
    /// Use the admin routes, which show and change the operation of the bus. Reading events still requires `subscribe`.
    Admin,
}

/// A text is not a scope.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// The text has none of the three forms of a scope.
    #[error("unknown scope {0:?}; valid scopes: publish:<pattern>, subscribe:<pattern>, admin")]
    Unknown(String),
    /// The pattern is invalid.
    #[error("scope {text:?}")]
    Pattern {
        /// The scope.
        text: String,
        /// The error of the pattern.
        source: TopicError,
    },
}

impl Scope {
    /// All permissions, including dead letters.
    pub fn all() -> Vec<Self> {
        let pattern = |text| Pattern::new(text).expect("the constant is a valid pattern");
        vec![
            Self::Publish(pattern("**")),
            Self::Publish(pattern("dlq.**")),
            Self::Subscribe(pattern("**")),
            Self::Subscribe(pattern("dlq.**")),
            Self::Admin,
        ]
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let pattern = |pattern: &str| {
            Pattern::new(pattern).map_err(|source| ScopeError::Pattern { text: text.to_owned(), source })
        };
        match text.split_once(':') {
            None if text == "admin" => Ok(Self::Admin),
            Some(("publish", rest)) => Ok(Self::Publish(pattern(rest)?)),
            Some(("subscribe", rest)) => Ok(Self::Subscribe(pattern(rest)?)),
            _ => Err(ScopeError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(pattern) => write!(f, "publish:{pattern}"),
            Self::Subscribe(pattern) => write!(f, "subscribe:{pattern}"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_survive_a_round_trip_as_text() {
        for text in ["admin", "publish:**", "subscribe:dlq.**", "subscribe:a:b.*", "publish:orders.created"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for scope in Scope::all() {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
    }

    #[test]
    fn an_invalid_scope_is_named_in_the_error() {
        for text in ["", "Admin", "admin:", "publish", "read:**", " publish:**", "*", "publish :a"] {
            assert_eq!(text.parse::<Scope>(), Err(ScopeError::Unknown(text.to_owned())), "{text}");
        }
        for text in ["publish:", "subscribe:a..b", "subscribe:a*", "publish:a b"] {
            assert!(matches!(text.parse::<Scope>(), Err(ScopeError::Pattern { .. })), "{text}");
        }
    }
}
