//! Finds the settings that a reload cannot apply.

use super::Loaded;
use super::definitions;
use super::setting::{Field, Setting, Shown};

impl Loaded {
    /// The paths of the settings whose values in `now` differ from those that this configuration, with which the server started,
    /// has, and that are applied only after a restart. Values are not shown: some are secret.
    pub fn need_restart(&self, now: &Self) -> Vec<&'static str> {
        let (mut ours, mut theirs) = (self.settings.clone(), now.settings.clone());
        let mut is_same = |setting: &Setting| match &setting.field {
            Field::Number(place) => place(&mut ours).get() == place(&mut theirs).get(),
            Field::Switch(place) => place(&mut ours) == place(&mut theirs),
            Field::Texts(place, _) => place(&mut ours) == place(&mut theirs),
            Field::Section if setting.path == "listen" => ours.server.listen == theirs.server.listen,
            Field::Section => self.value(setting) == now.value(setting),
        };
        let settings = definitions::all_with_reload().filter(|(_, is_reloaded)| !is_reloaded);
        let mut paths: Vec<_> =
            settings.filter(|(setting, _)| !is_same(setting)).map(|(setting, _)| setting.path).collect();
        // A reload replaces a certificate, but does not switch TLS on or off.
        if self.settings.server.tls.is_some() != now.settings.server.tls.is_some() {
            paths.extend(["tls.cert", "tls.key"]);
        }
        paths
    }

    /// The value of a setting that has no field, or its default.
    fn value(&self, setting: &Setting) -> Option<toml::Value> {
        let given = self.source.get(setting.path).cloned();
        given.or_else(|| match setting.shown {
            Shown::Default(default) => {
                toml::from_str::<toml::Table>(&format!("value = {default}")).ok()?.remove("value")
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use crate::config::{Environment, load};
    use clap::Parser;
    use prombus_server::TlsOptions;
    use std::ffi::OsString;

    fn loaded(variables: &[(&str, &str)]) -> Loaded {
        let Command::Serve(args) = Args::parse_from(["prombus", "serve"]).command else {
            panic!("not serve")
        };
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        load(None, &args.settings, &Environment::new(variables).unwrap()).unwrap()
    }

    #[test]
    fn only_changed_settings_that_need_a_restart_are_named() {
        let before = loaded(&[("WS_TOKEN", "a"), ("PROMBUS_LIMITS_MAX_TOPICS", "7")]);
        let same = loaded(&[
            ("PROMBUS_LIMITS_MAX_TOPICS", "7"),
            ("PROMBUS_LOG_FORMAT", "text"),
            ("PROMBUS_RATE_CONNECTION_PUBLISH_PER_SECOND", "5"),
            ("PROMBUS_HTTP_CORS_ORIGINS", "https://a.example"),
        ]);
        assert_eq!(before.need_restart(&before), [""; 0]);
        assert_eq!(before.need_restart(&same), [""; 0], "the default of a setting is not a change");
        let (mut tls, shown) = (same.clone(), same.settings.server.shown_settings.list());
        let files = TlsOptions { cert: "cert.pem".into(), key: "key.pem".into() };
        tls.settings.server.tls = Some(files);
        let switched = ["tls.cert", "tls.key"];
        assert_eq!(same.need_restart(&tls), switched, "TLS is not switched on");
        assert_eq!(tls.need_restart(&same), switched, "nor off");
        assert!(switched.iter().all(|path| shown.iter().any(|row| row.name == *path)), "{shown:?}");
        let other = loaded(&[
            ("PROMBUS_LISTEN", "127.0.0.1:9"),
            ("PROMBUS_STORE", "memory:"),
            ("PROMBUS_HTTP_PERMESSAGE_DEFLATE", "true"),
        ]);
        let paths = ["listen", "store", "http.permessage_deflate", "limits.max_topics"];
        assert_eq!(before.need_restart(&other), paths);
    }
}
