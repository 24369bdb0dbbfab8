//! The connection string of a database. Its password is never shown.

use std::fmt;

/// A connection string. `Display` and `Debug` leave out the password and the options, which may contain secrets too.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Stores the text unchanged.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole text, for the driver only.
    pub fn with_password(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        write!(formatter, "{scheme}://")?;
        // A password that is not percent-encoded may contain `@`, `/` and `?`; so may the value of an option.
        let (shown, options) = rest.split_once('?').unwrap_or((rest, ""));
        if options.contains('@') {
            // Where the password ends is unclear: everything after the first `:` may belong to it.
            return match shown.split_once(':') {
                Some((name, _)) => write!(formatter, "{name}:***"),
                None => formatter.write_str(shown),
            };
        }
        match shown.rsplit_once('@') {
            Some((credentials, hosts)) => {
                let user = credentials.split(':').next().unwrap_or_default();
                write!(formatter, "{user}:***@{hosts}")
            }
            None => formatter.write_str(shown),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_options_are_not_shown() {
        for (url, shown) in [
            ("mongodb://localhost:27017", "mongodb://localhost:27017"),
            ("mongodb://a:1,b:2/bus?replicaSet=rs0", "mongodb://a:1,b:2/bus"),
            ("mongodb://me:hunter2@a,b/bus", "mongodb://me:***@a,b/bus"),
            ("mongodb+srv://me:hun@ter2@a/bus", "mongodb+srv://me:***@a/bus"),
            ("mongodb://me:hun?ter2@a/bus?w=1", "mongodb://me:***"),
            ("mongodb://me:h@un?ter2@a/bus?w=1", "mongodb://me:***"),
            ("mongodb://me:hun/ter2@a", "mongodb://me:***@a"),
            ("mongodb://me@a/?authMechanismProperties=AWS_SESSION_TOKEN:hunter2", "mongodb://me:***@a/"),
            ("mongodb://a/?tlsCertificateKeyFilePassword=hunter2", "mongodb://a/"),
            ("mongodb://a/?tlsCertificateKeyFilePassword=hun@ter2", "mongodb://a/"),
            ("mongodb://a:1,b/?tlsCertificateKeyFilePassword=hun@ter2", "mongodb://a:***"),
            ("mongodb://me:x@a/?tlsCertificateKeyFilePassword=hun@ter2", "mongodb://me:***"),
        ] {
            let url = StoreUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("StoreUrl({shown})"));
        }
    }
}
