//! ChatServer over HTTP: a module for each promise.

mod approvals;
mod client_claims;
mod client_versions;
mod endings;
mod limits;
mod pages;
mod reconnecting;
mod repeated_requests;
mod stores;
mod strangers;
