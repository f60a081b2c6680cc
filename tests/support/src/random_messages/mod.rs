//! Random messages and their values, with contents that no client would send.

pub mod fields;
pub mod history;
pub mod message;
pub mod values;
