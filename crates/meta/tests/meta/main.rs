//! Tests of the metadata crate against golden bytes, damage, crashes, and the reference tool.

mod activity_log;
mod golden;
mod hostile;
mod reference_tool;
mod vectors;
