//! `GET /settings`: the effective settings and where they come from.

use super::answer::{self, Answered};
use super::call::Call;
use crate::shown_settings::ShownSetting;
use serde::Serialize;

#[derive(Serialize)]
struct Settings<'a> {
    settings: &'a [ShownSetting],
}

pub(super) async fn settings(call: Call) -> Answered {
    answer::json(&Settings { settings: &call.gateway.options.shown_settings.list() })
}
