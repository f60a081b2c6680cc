//! Random messages and what they are made of, with what no client would send.

pub mod fields;
pub mod history;
pub mod message;
pub mod values;
