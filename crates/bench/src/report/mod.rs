//! What people and programs are shown of a report.

mod html;
mod markdown;
mod plot;
mod text;

use crate::results::Report;

pub use html::html;
pub use markdown::{BEGIN, END, markdown, renew};
pub use text::text;

/// For programs, and for [`Report::from_json`].
#[must_use]
pub fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap_or_default() + "\n"
}
