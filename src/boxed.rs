//! [`BoxFuture`] and [`BoxError`], which the traits return that a host implements.

use std::error::Error;

pub use futures_core::future::BoxFuture;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;
